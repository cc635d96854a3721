"""A figure: what was measured, beside its target."""

from typing import Any, Literal, Self

from pydantic import BaseModel, FiniteFloat, computed_field


class Figure(BaseModel, frozen=True):
    """One line of the table. Keys of a part's result that are not listed here are left out."""

    figure: FiniteFloat
    unit: str
    target: FiniteFloat
    better: Literal["higher", "lower"] = "higher"
    how: str
    notes: tuple[str, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def met(self) -> bool:
        """Whether the figure is at least (or at most) its target."""
        if self.better == "higher":
            return self.figure >= self.target
        return self.figure <= self.target

    @classmethod
    def all_of(cls, name: str, result: dict[str, Any]) -> dict[str, Self]:
        """Read what the part `name` returned: one figure, or several by name.

        Raises pydantic.ValidationError when something is missing or of the wrong type.
        """
        several = {name: result} if "figure" in result else result
        return {key: cls.model_validate(value) for key, value in several.items()}

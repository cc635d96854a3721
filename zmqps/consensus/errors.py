"""Mistakes in a consensus problem that only show when its parts come together."""


class ConsensusError(ValueError):
    """Settings that do not fit together: `place` is the setting (dotted), the message says why."""

    def __init__(self, place: str, message: str) -> None:
        self.place, self.message = place, message
        super().__init__(f"{place}: {message}")

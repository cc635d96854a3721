"""One round of an algorithm between agents, as one agent computes it or all at once.

An algorithm names the vectors that a message carries, and makes the next state from the mixed ones.
The arrays of a state are (d,) for one agent, or (agents, d) for all: the arithmetic is the same,
element by element, and so are the bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Literal

import numpy as np

from zmqps.optim.mixing import Array

State = Mapping[str, Array]
Function = Callable[[Array], Array]
Place = Literal["local", "mixed"]
OnMissing = Literal["wait", "last_value", "self_weight"]


class Algorithm(ABC):
    """What happens in a round, between the messages.

    `sent` names the arrays of the state that travel; the others stay with the agent. `on_missing`
    is what may be done about a message that does not come.
    """

    sent: ClassVar[tuple[str, ...]] = ("x",)
    on_missing: ClassVar[tuple[OnMissing, ...]] = ("wait", "last_value", "self_weight")

    def start(self, x: Array, subgradient: Function) -> State:  # noqa: ARG002 - some need it
        """Return the state before round 0, from the first estimate. `x` stays the caller's."""
        return {"x": np.array(x)}

    @abstractmethod
    def step(
        self, state: State, mixed: State, alpha: float | Array, subgradient: Function
    ) -> State:
        """Return the state after the round: new arrays, no array of `state` is written.

        `mixed` holds Σ_j a_ij s_j for each name in `sent`; `alpha` is α_k, one number or (agents,
        1); `subgradient` maps estimates to subgradients, each time a new array.
        """


class Subgradient(Algorithm):
    """x_i(k+1) = P_X[Σ_j a_ij x_j(k) - α_k d_i] ([N], 2009 without P_X, 2010 with it).

    d_i is a subgradient of f_i at x_i(k) (`local`, the 2009 paper's) or at the mixed point
    (`mixed`, the 2010 paper's).
    """

    def __init__(self, gradient_at: Place, project: Function | None = None) -> None:
        self._gradient_at: Final = gradient_at
        self._project: Final = project

    def step(
        self, state: State, mixed: State, alpha: float | Array, subgradient: Function
    ) -> State:
        """Mix, step, project."""
        at = state["x"] if self._gradient_at == "local" else mixed["x"]
        move = subgradient(at)
        move *= alpha
        x: Array = np.subtract(mixed["x"], move, out=move)
        return {"x": x if self._project is None else self._project(x)}

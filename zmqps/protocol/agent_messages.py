"""What agents say to each other, and to whoever only watches (see `protocol.messages`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """What `agent` contributes to round `round`: an array for each name in `vectors`.

    Without vectors, the receiver gives the sender no weight in that round. `stop` is the latest
    round that any agent known to the sender wants to stop before; 0: none does.
    """

    agent: int
    round: int
    stop: int
    vectors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """`agent` lacks the receiver's estimates of `round` and later; its own before `sent` are sent.

    `problem` is a digest of what all agents must agree on.
    """

    agent: int
    round: int
    sent: int
    problem: str


@dataclass(frozen=True, slots=True)
class RoundSaved:
    """`agent` will not ask for estimates before `round` again; with `ended`, for none at all."""

    agent: int
    round: int
    ended: bool


@dataclass(frozen=True, slots=True)
class AgentReport:
    """An agent's estimate after `round` rounds, and the average of those before, as arrays.

    `kind` is `last` for the final one, `bad` for the first that is not finite or out of bounds.
    `messages` and `nbytes` are totals of what it sent with vectors.
    """

    agent: int
    round: int
    kind: str
    messages: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SilentReport:
    """`agent` lacks an estimate of `silent`, which has said nothing for too long.

    `action` is what it does: `wait`, or `drop`, as `on_lost` has it.
    """

    agent: int
    round: int
    silent: int
    action: str

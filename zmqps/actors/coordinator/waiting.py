"""What keeps the run from going on, and for how long it has. Part of the coordinator."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wait:
    """What the cluster waits for. `limit_s` is None when it may take for ever."""

    kind: str
    text: str
    limit_s: float | None


class Waiting:
    """How long the cluster has waited for one kind of thing."""

    def __init__(self) -> None:
        self._kind: str | None = None
        self._since = 0.0

    def waited_s(self, wait: Wait | None, now: float) -> float:
        """Return the seconds since this kind is waited for, or since `again`."""
        kind = wait.kind if wait else None
        if kind is None or kind != self._kind:
            self._kind, self._since = kind, now
        return now - self._since

    def again(self, now: float) -> None:
        """Count anew."""
        self._since = now

"""What the virtual network is made of: ends, connections, messages on their way, disturbances."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from zmqps.simulator.settings import Ends, LinkSettings

Side = Literal["dealer", "router", "both"]
"""Who goes on believing that a connection is open."""


class Place(Protocol):
    """What the network must know of a process."""

    name: str
    host: str

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""

    @property
    def running(self) -> bool:
        """Whether it is alive and not frozen."""


class End(Protocol):
    """A core's shell, as the network sees it. `peers` are those connected to its ROUTER, by id."""

    process: Any
    peers: "dict[bytes, Connection]"

    def arrive(self, link: str, frames: Sequence[bytes]) -> None:
        """Take a message on a link; on a ROUTER its first frame is the sender's id."""


@dataclass(slots=True, eq=False)
class Packet:
    """A message on its way. `lent` is the sender's own memory, which it must not write any more."""

    to_router: bool
    frames: list[bytes]
    lent: Sequence[Any]
    generation: int
    departs_at: float = 0.0


@dataclass(slots=True, eq=False)
class Connection:
    """What `Open` makes: a DEALER towards one endpoint. `generation` counts its breaks.

    One that is `severed` carries nothing, and whoever believes it to be up is not told; with
    `resets`, the next message that is sent on it finds out.
    """

    dealer: End
    link: str
    endpoint: str
    identity: bytes
    state: Literal["connecting", "up", "ignored", "closed"] = "connecting"
    listener: End | None = None
    generation: int = 0
    severed: bool = False
    resets: bool = False
    ends_at: float = 0.0  # when closed: what departs later is dropped
    queue: deque[list[Any]] = field(default_factory=deque)
    held: list[Packet] = field(default_factory=list)
    last_at: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Faults between processes whose names fit, on top of those of the links."""

    between: Ends
    one_way: bool
    cut: bool = False
    link: LinkSettings = LinkSettings(latency_ms=0)  # noqa: RUF009 - it is frozen

"""The virtual network, as `network.yaml` states it: hosts, the links between them, what work costs.

Patterns are those of file names: `replica-*`, `shard-[0-3]`.
"""

from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field, field_validator

from zmqps.protocol.settings import Count, Settings

Share = Annotated[float, Field(ge=0, le=1)]
Duration = Annotated[float, Field(ge=0, le=1e9)]
Pattern = Annotated[str, Field(min_length=1, max_length=100)]
Ends = Annotated[tuple[Pattern, ...], Field(min_length=2, max_length=2)]


class LinkSettings(Settings):
    """One direction of a link between two hosts."""

    latency_ms: Duration = Field(0.1, description="From one host to the other.")
    jitter_ms: Duration = Field(0.0, description="Each message takes up to this much longer.")
    mbit_per_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="What one direction of the link carries; null: anything."
    )
    loss: Share = Field(0.0, description="Share of messages that do not arrive.")
    duplicate: Share = Field(0.0, description="Share of messages that arrive twice.")
    reorder: Share = Field(0.0, description="Share of messages that later ones may overtake.")


class BetweenSettings(LinkSettings):
    """The link between hosts that fit two patterns."""

    between: Ends = Field(description="Patterns of the hosts at both ends.")
    one_way: bool = Field(False, description="Only from the first to the second.")

    def fits(self, source: str, target: str) -> bool:
        """Say whether this is the link from one host to another."""
        return fits(self.between, source, target, one_way=self.one_way)


class CostSettings(Settings):
    """What work takes, in virtual time."""

    gradient_ms: Duration | Annotated[tuple[Duration, ...], Field(min_length=1)] = Field(
        10.0,
        description="One gradient of one batch; of several numbers, each takes one, drawn. "
        "A portion under L-BFGS takes as many times as long as it has samples of training.batch.",
    )
    gradient_spread: Share = Field(
        0.1, description="A gradient takes up to this share more or less."
    )
    evaluate_ms: Duration = Field(100.0, description="A measurement on the test set.")
    message_us: Duration = Field(30.0, description="An actor's work on one message.")
    copy_mbyte_per_s: Annotated[float, Field(gt=0)] = Field(
        2000.0, description="An actor's work on the arrays of a message."
    )
    disk_mbyte_per_s: Annotated[float, Field(gt=0)] = Field(200.0, description="Saving.")
    disk_ms: Duration = Field(5.0, description="A file, however small.")


class NetworkSettings(Settings):
    """See the module."""

    brokers: Count = Field(1, description="Brokers; each replica uses one, the near one if any.")
    hosts: dict[str, tuple[Pattern, ...]] = Field(
        {}, description="Host → processes on it; others have a host of their name to themselves."
    )
    local: LinkSettings = Field(
        LinkSettings(latency_ms=0.02), description="Between the processes of one host."
    )
    default: LinkSettings = Field(LinkSettings(), description="Between hosts, unless told.")
    links: tuple[BetweenSettings, ...] = Field((), description="Of these the first that fits.")
    cards: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="Pattern of hosts → Mbit/s that each host's card carries each way, in all."
    )
    own_disks: bool = Field(
        False, description="Whether each host has its own disk; otherwise all see one."
    )
    costs: CostSettings = Field(CostSettings(), description="What work takes.")
    slow: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="Pattern of processes → how many times as long their work takes."
    )

    @field_validator("hosts")
    @classmethod
    def _one_place(cls, hosts: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        places: dict[str, str] = {}
        for host, patterns in hosts.items():
            for pattern in patterns:
                if pattern in places:
                    raise ValueError(f"{pattern} is on both {places[pattern]} and {host}")
                places[pattern] = host
        return hosts

    def host_of(self, process: str) -> str:
        """Return the host of a process."""
        for host, patterns in self.hosts.items():
            if any(fnmatchcase(process, pattern) for pattern in patterns):
                return host
        return process

    def link(self, source: str, target: str) -> LinkSettings:
        """Return the link from one host to another."""
        if source == target:
            return self.local
        return next((link for link in self.links if link.fits(source, target)), self.default)

    def card(self, host: str) -> float | None:
        """Return how many Mbit/s the network card of a host carries each way; None: any number."""
        found = (rate for name, rate in self.cards.items() if fnmatchcase(host, name))
        return next(found, None)

    def slowness(self, process: str) -> float:
        """Return how many times as long the work of a process takes."""
        found = (factor for name, factor in self.slow.items() if fnmatchcase(process, name))
        return next(found, 1.0)


def fits(between: Ends, source: str, target: str, *, one_way: bool = False) -> bool:
    """Say whether two names fit two patterns, in this order or, unless `one_way`, in the other."""
    first, second = between
    there = fnmatchcase(source, first) and fnmatchcase(target, second)
    back = not one_way and fnmatchcase(source, second) and fnmatchcase(target, first)
    return there or back

"""What travels on the data path, replica → broker → shard and back (see `protocol.messages`)."""

from dataclasses import dataclass
from typing import Literal

from zmqps.protocol.parts import Part, Receipt, Want


@dataclass(frozen=True, slots=True)
class Attach:
    """First on a link: a replica's thread to a broker, a broker to a shard, a shard to another."""

    purpose: Literal["fetch", "push", "broker", "shard", "take"]
    window_bytes: int


@dataclass(frozen=True, slots=True)
class Attached:
    """The receiver grants `credit_bytes`: so many may be on their way and unanswered at once."""

    credit_bytes: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send these rows, except of blocks whose version is the one known.

    `vector` names another vector than the parameters (Sandblaster); it is sent in any version.
    """

    wants: tuple[Want, ...]
    vector: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The rows asked for, one array per part; `unchanged` are the keys left out."""

    parts: tuple[Part, ...]
    unchanged: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Push:
    """Part of push `number` of the sender's incarnation: accrued gradients, one array per part.

    With an `evaluation`, they are those of portions, and wait until they are counted (Sandblaster).
    """

    number: int
    step: int
    parts: tuple[Part, ...]
    evaluation: int = 0


@dataclass(frozen=True, slots=True)
class Pushed:
    """Each block of the push, and what became of it. Acknowledged means: applied in memory."""

    number: int
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class Create:
    """First values from the client that was told to create them, one array per part."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Created:
    """The blocks exist now; those that existed before were left alone."""

    keys: tuple[int, ...]
    existed: tuple[int, ...]

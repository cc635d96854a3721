"""How each replica's model is cut over several processes: the job file's `stages`."""

from typing import Annotated

from pydantic import Field

from zmqps.models.partition.figures import PARTITIONS_MAX
from zmqps.protocol.settings import Count, Settings

Partitions = Annotated[int, Field(ge=1, le=PARTITIONS_MAX)]
StageNumber = Annotated[int, Field(ge=0, lt=PARTITIONS_MAX)]


class StageSettings(Settings):
    """The stages of a replica, when `partitions` is above 1."""

    place: dict[str, tuple[StageNumber, ...]] = Field(
        default={},
        description="Stages among which a layer (by the name of its tensors) is divided, such as "
        "`{dense1: [0, 1]}`; other layers are placed such that a batch takes least time.",
    )
    memory_mib: Count | None = Field(
        None,
        description="Memory that the model may take in each process of a replica; a job that needs "
        "more is refused, with the number of partitions that would do. null: no limit.",
    )
    micro_batches: Annotated[int, Field(ge=1, le=64)] = Field(
        2,
        description="Parts of a batch that are under way at once: while one waits for another "
        "stage, the next one is computed.",
    )

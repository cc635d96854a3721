"""What actors say to each other: one frozen class per kind of message, its fields with types.

`docs/protocol.md` says who sends what to whom, and when; it changes together with the classes,
which are in `control_messages`, `data_messages`, `sandblaster_messages`, `stage_messages` and
`agent_messages`, and are imported from here.
`protocol.wire` turns a `Message` into frames and back, and checks each field against its type.
"""

from dataclasses import dataclass

from zmqps.protocol.agent_messages import AgentReport, Estimate, RoundSaved, SilentReport, Waiting
from zmqps.protocol.control_messages import (
    AskStatus,
    Assign,
    Assigned,
    BrokerReport,
    Bye,
    Declare,
    Declared,
    Evaluate,
    Evaluated,
    Heartbeat,
    Hello,
    Leave,
    Mirror,
    Moved,
    Progress,
    Refused,
    RefusedReport,
    Release,
    Restored,
    Role,
    Roster,
    Routes,
    Save,
    Saved,
    Scale,
    ShardReport,
    Status,
    Stop,
    Stopped,
    Welcome,
)
from zmqps.protocol.data_messages import (
    Attach,
    Attached,
    Create,
    Created,
    Fetch,
    Fetched,
    Push,
    Pushed,
)
from zmqps.protocol.sandblaster_messages import (
    Operate,
    Operated,
    Portion,
    PortionDone,
    PortionsSent,
)
from zmqps.protocol.shard_messages import Changes, Copy, Given, InStep, Take, Taken
from zmqps.protocol.stage_messages import (
    StageJoin,
    StageMeasure,
    StagePortion,
    StagePush,
    StagePushed,
    StageRows,
    StageStep,
    StageStop,
    StageStopped,
    StageTeam,
)

PROTOCOL_VERSION = 2

__all__ = [
    "PROTOCOL_VERSION",
    "AgentReport",
    "AskStatus",
    "Assign",
    "Assigned",
    "Attach",
    "Attached",
    "Body",
    "BrokerReport",
    "Bye",
    "Changes",
    "Copy",
    "Create",
    "Created",
    "Declare",
    "Declared",
    "Estimate",
    "Evaluate",
    "Evaluated",
    "Fetch",
    "Fetched",
    "Given",
    "Heartbeat",
    "Hello",
    "InStep",
    "Leave",
    "Message",
    "Mirror",
    "Moved",
    "Operate",
    "Operated",
    "Portion",
    "PortionDone",
    "PortionsSent",
    "Progress",
    "Push",
    "Pushed",
    "Refused",
    "RefusedReport",
    "Release",
    "Restored",
    "Role",
    "Roster",
    "RoundSaved",
    "Routes",
    "Save",
    "Saved",
    "Scale",
    "ShardReport",
    "StageJoin",
    "StageMeasure",
    "StagePortion",
    "StagePush",
    "StagePushed",
    "StageRows",
    "StageStep",
    "StageStop",
    "StageStopped",
    "StageTeam",
    "Status",
    "Stop",
    "Stopped",
    "Take",
    "Taken",
    "Waiting",
    "Welcome",
]

Body = (
    Hello | Welcome | Refused | Heartbeat | Bye | Routes | Declare | Declared | Assign | Assigned
    | Roster | Release | Progress | ShardReport | BrokerReport | RefusedReport
    | Evaluate | Evaluated | Save | Saved | Stop | Stopped | Leave | AskStatus | Scale | Status
    | Attach | Attached | Fetch | Fetched | Push | Pushed | Create | Created
    | Mirror | Restored | Copy | Changes | InStep | Taken
    | Moved | Take | Given
    | Operate | Operated | Portion | PortionDone | PortionsSent
    | Estimate | Waiting | RoundSaved | AgentReport | SilentReport
    | StageJoin | StageTeam | StageStep | StageMeasure | StageStop | StageStopped | StageRows
    | StagePortion | StagePush | StagePushed
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """One message: who sent it, as which of its messages, in answer to which, and what.

    `incarnation` is the sender's (0 before it has one), `target` the receiver's as far as known (0
    otherwise; old requests reach whoever takes a port next), `cause` the sequence number of the
    message that this one answers (0: none), `epoch` that of the route table used. Between a member
    and the coordinator, `number` counts what must arrive (0: need not), and `taken` is the last
    number that came from the receiver; see `actors.session`.
    """

    incarnation: int
    sequence: int
    body: Body
    cause: int = 0
    target: int = 0
    epoch: int = 0
    number: int = 0
    taken: int = 0

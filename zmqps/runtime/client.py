"""`zmqps.Client`: a process's part in a cluster, for any training loop that has NumPy arrays.

It runs the control, fetch and push cores in their threads. The caller is their owner: either a
loop of the user's own, by the methods below, or the compute core of a replica (`roles.replica`),
which takes `mailbox` and `posts` and is wired to the same threads.
"""

import json
import os
import secrets
import select
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from zmqps.actors.base import Array, Core, Posted, frozen
from zmqps.actors.membership import BeginLog, Membership
from zmqps.actors.membership import Self as Who
from zmqps.actors.replica.control import ControlCore
from zmqps.actors.replica.fetch import FetchCore
from zmqps.actors.replica.orders import (
    Connected,
    DeclareOrder,
    DeclareResult,
    FetchOrder,
    FetchResult,
    LeaveOrder,
    PushOrder,
    PushResult,
)
from zmqps.actors.replica.push import PushCore
from zmqps.optim.settings import ConstantSchedule, RuleSettings, ScheduleSettings
from zmqps.protocol.errors import LocalError
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Role, Welcome
from zmqps.protocol.parts import Version
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.tensors import TensorSpec
from zmqps.runtime.addresses import LOOPBACK, PORT, Told, read_endpoint
from zmqps.runtime.given import arrays_of, check_gradient, settings_of, specs_of
from zmqps.runtime.ipc import host_id
from zmqps.runtime.log import open_log
from zmqps.runtime.loop import Inline, Loop, TaskHandler
from zmqps.runtime.mailbox import Mailbox
from zmqps.runtime.run_folder import begin_log
from zmqps.runtime.security import Security
from zmqps.runtime.security_keys import read_keys
from zmqps.runtime.transport import new_context

LEAVE_S = 5.0


class ClusterError(RuntimeError):
    """The cluster refused, ended, or did not answer in time; the message says what and why."""


class Client:
    """Declare named arrays, fetch them, and push gradients, to a running cluster.

    A client belongs to one thread. Use it in a `with` statement, or call `close`.

        with zmqps.Client() as client:
            client.declare({"w": np.zeros(10)}, {"rule": "sgd", "rate": 0.1})
            for _ in range(100):
                client.push({"w": client.fetch()["w"] - 1.0})

    `start_fetch` and `start_push` return at once; their results are waited for by `finish_fetch`
    and `finish_pushes`, or simply picked up by later calls.
    """

    def __init__(
        self,
        coordinator: str | None = None,
        *,
        role: Role = "client",
        run_dir: str | os.PathLike[str] | None = None,
        keys: str | os.PathLike[str] | None = None,
        start_deadline_s: float = 60.0,
    ):
        endpoint = _endpoint(coordinator)
        folder = keys or os.environ.get("ZMQPS_KEYS")
        key = "replica" if role == "stage" else role
        self.security = Security(read_keys(Path(folder), key) if folder else None)
        host = host_id()
        self.welcome: Welcome | None = None
        self.layout: Layout | None = None
        self.mailbox = Mailbox()
        self.log = open_log(role, host, ClusterSettings().log_bytes_max)
        self.context = new_context()
        identity = f"{role}-{secrets.token_hex(8)}".encode()
        who = Who(
            role, host, os.getpid(), identity, endpoint,
            start_deadline_ms=int(start_deadline_s * 1e3),
        )  # fmt: skip
        self.posts = {name: Mailbox() for name in ("control", "fetch", "push")}
        self._push_core = PushCore()
        cores: dict[str, Core] = {
            "control": ControlCore(Membership(who)),
            "fetch": FetchCore(),
            "push": self._push_core,
        }
        tasks: dict[type, TaskHandler] = {
            BeginLog: Inline(self.security.welcome(begin_log(self.log, host, run_dir)))
        }
        boxes = {**self.posts, "owner": self.mailbox}
        self.loops = [
            Loop(
                name,
                core,
                context=self.context,
                log=self.log,
                mailbox=boxes[name],
                posts=boxes,
                tasks=tasks,
                security=self.security,
            )
            for name, core in cores.items()
        ]
        self._threads = [threading.Thread(target=loop.run, name=loop.name) for loop in self.loops]
        self._parameters: dict[str, Array] = {}
        self._versions: dict[int, Version] = {}
        self._fetch = self._fetched = 0
        self._push = 0
        self._pushes: dict[int, int] = {}  # number → bytes, of those not acknowledged
        self._last_push: PushResult | None = None
        self._incarnation = 0
        self._given_up = ""  # why pushes will not be acknowledged, until it was told
        self._ready = False  # all shards have values
        self._values: dict[str, Array] = {}  # first values, for when they are asked for
        self._left: LeaveOrder | None = None

    # --- Life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the threads; `with` does it."""
        for thread in self._threads:
            thread.start()
        return self

    @property
    def bytes_in_flight_max(self) -> int:
        """Most bytes of pushes that were sent and not answered at one time."""
        requests = self._push_core.requests
        return requests.bytes_in_flight_max if requests else 0

    def connect(self) -> Welcome:
        """Wait until the coordinator has admitted this process. Raises ClusterError if not."""
        self._wait(lambda: self.welcome is not None, None, "the coordinator")
        assert self.welcome is not None
        return self.welcome

    def close(self, error: str | None = None) -> None:
        """Say goodbye and end the threads; harmless when they have ended."""
        self.posts["control"].post(LeaveOrder(error))
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(LEAVE_S)
        for loop in self.loops:
            loop.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(LEAVE_S)
        self.context.destroy(linger=0)
        self.log.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(None if error is None else str(error) or type(error).__name__)

    # --- The model --------------------------------------------------------------------------------

    def declare(
        self,
        tensors: Mapping[str, Any] | Sequence[TensorSpec],
        update: Mapping[str, Any] | RuleSettings,
        *,
        schedule: Mapping[str, Any] | None = None,
        seed: int = 1,
        timeout_s: float | None = 60.0,
    ) -> None:
        """State the model and wait until the cluster holds values for all of it.

        `tensors` maps names to first values (float32 or float64), or lists `TensorSpec`s. `update`
        is an update rule as in a job file. The first client of a cluster decides; the values of a
        later one are not used, and one whose tensors or rule differ is refused (ClusterError).
        Raises LocalError, a ValueError, for what cannot be declared anywhere.
        """
        rule = settings_of(RuleSettings, update, "update")
        plan = settings_of(ScheduleSettings, schedule or ConstantSchedule(), "schedule")
        values = {} if isinstance(tensors, Sequence) else arrays_of("tensors", tensors)
        specs = tuple(tensors) if isinstance(tensors, Sequence) else specs_of(values)
        welcome = self.connect()
        layout = Layout(specs, int(welcome.cluster["block_bytes_max"]))
        if self.layout is not None and self.layout.digest != layout.digest:
            raise LocalError("this client has declared another model already: use a new Client")
        terms = {f"update.{name}": json.dumps(value) for name, value in rule.items()}
        on_shards = {
            "update": rule, "schedule": plan, "seed": seed, "on_nonfinite": "refuse", "sync": False,
        }  # fmt: skip
        self.order(DeclareOrder("client", layout, terms, on_shards, {}, 0))
        self._values, self._ready = values, False
        self._wait(lambda: self._ready, timeout_s, "the cluster to take the model and its values")

    def order(self, order: DeclareOrder) -> None:
        """Declare a model whose layout is known already, without waiting."""
        self.layout = order.layout
        self.posts["control"].post(order)

    # --- Fetch and push ---------------------------------------------------------------------------

    def fetch(self, timeout_s: float | None = 60.0, *, copy: bool = True) -> dict[str, Array]:
        """Return the newest parameters by name: arrays of the caller's own.

        With `copy=False` they are read-only and change at the next fetch.
        """
        self.start_fetch()
        return self.finish_fetch(timeout_s, copy=copy)

    def push(
        self, gradients: Mapping[str, Any], timeout_s: float | None = 60.0, *, copy: bool = True
    ) -> PushResult:
        """Push gradients, computed from the parameters of the last fetch, and wait for receipts.

        With `copy=False` the arrays must not be written until the push is acknowledged.
        """
        number = self.start_push(gradients, copy=copy)
        self._wait(lambda: number not in self._pushes, timeout_s, f"receipts of push {number}")
        assert self._last_push is not None
        return self._last_push

    def start_fetch(self) -> int:
        """Start a fetch in the background and return its number."""
        self._layout()
        self._fetch += 1
        self.posts["fetch"].post(FetchOrder(self._fetch, self._fetch))
        return self._fetch

    def finish_fetch(
        self, timeout_s: float | None = 60.0, *, copy: bool = True
    ) -> dict[str, Array]:
        """Wait for the last fetch started, and return the parameters as `fetch` does."""
        number = self._fetch
        self._wait(lambda: self._fetched >= number, timeout_s, f"the answers to fetch {number}")
        return {n: a.copy() if copy else frozen(a) for n, a in self._parameters.items()}

    def start_push(self, gradients: Mapping[str, Any], *, copy: bool = True) -> int:
        """Start a push in the background and return its number; see `push`.

        It waits only when `push_window_bytes` are on their way already.
        """
        layout = self._layout()
        arrays = arrays_of("gradients", gradients)
        for name, array in arrays.items():
            check_gradient(name, array, layout)
        arrays = {n: a.copy() for n, a in arrays.items()} if copy else arrays
        nbytes = sum(array.nbytes for array in arrays.values())
        self._wait(lambda: self._has_room(nbytes), 60.0, "room in the push window")
        self._push += 1
        self._pushes[self._push] = nbytes
        reads = dict(self._versions)
        number, who = self._push, self._incarnation
        self.posts["push"].post(PushOrder(number, number, 1, arrays, reads, incarnation=who))
        return self._push

    def finish_pushes(self, timeout_s: float | None = 60.0) -> None:
        """Wait until every push that was started is acknowledged."""
        self._wait(lambda: not self._pushes, timeout_s, f"receipts of {len(self._pushes)} pushes")

    # --- Waiting ----------------------------------------------------------------------------------

    def _wait(self, done: Any, timeout_s: float | None, what: str) -> None:
        began = time.monotonic()
        self._take(0.0)
        while self._sound() and not done():
            if self._left is not None:
                raise ClusterError(self._left.error or "the cluster has ended the run")
            if error := next((loop.error for loop in self.loops if loop.error), None):
                raise ClusterError(error)
            waited = time.monotonic() - began
            if timeout_s is not None and waited > timeout_s:
                raise ClusterError(f"waited {waited:.0f} s for {what}")
            self._take(0.2)

    def _sound(self) -> bool:
        """Raise ClusterError, once, when pushes were given up: nobody will acknowledge them."""
        given_up, self._given_up = self._given_up, ""
        if given_up:
            raise ClusterError(given_up)
        return True

    def _take(self, timeout_s: float) -> None:
        """Take what the threads have posted, waiting for the first for at most `timeout_s`."""
        select.select([self.mailbox.fd], [], [], timeout_s)
        for event in self.mailbox.drain():
            if isinstance(event, Posted):
                self._posted(event.item)

    def _posted(self, item: object) -> None:
        match item:
            case Connected(welcome):
                self._joined(welcome)
            case DeclareResult(declared):
                self._ready = declared.ready
                if declared.create and self._values:
                    self._create()
            case FetchResult() as result:
                self._store(result)
            case PushResult() as result if result.incarnation in (0, self._incarnation):
                self._pushes.pop(result.number, None)
                self._last_push = result
            case LeaveOrder() as left:
                self._left = left

    def _joined(self, welcome: Welcome) -> None:
        """Begin as a new incarnation; what was not acknowledged before is given up."""
        self.welcome, self._incarnation = welcome, welcome.incarnation
        if self._pushes:
            self._given_up = (
                f"{len(self._pushes)} pushes are given up: the coordinator had taken this client "
                f"for gone, and it has joined again, as {welcome.name}"
            )
        self._push, self._pushes = 0, {}

    def _create(self) -> None:
        """Send the first values: this client is the one whose count."""
        values, self._values = self._values, {}
        self._pushes[0] = sum(array.nbytes for array in values.values())
        self.posts["push"].post(PushOrder(0, 0, 0, values, {}, create=True))

    def _store(self, result: FetchResult) -> None:
        layout = self._layout()
        if not self._parameters:
            self._parameters = {s.name: np.zeros(s.shape, s.dtype) for s in layout.tensors}
        for key, (version, array) in result.blocks.items():
            block = layout.by_key[key]
            tensor = self._parameters[block.tensor]
            (tensor[block.start : block.stop] if tensor.ndim else tensor)[...] = array
            self._versions[key] = version
        self._fetched = result.number

    def _has_room(self, nbytes: int) -> bool:
        assert self.welcome is not None, "declared, hence welcome"
        window = int(self.welcome.cluster["push_window_bytes"])
        return not self._pushes or sum(self._pushes.values()) + nbytes <= window

    def _layout(self) -> Layout:
        if self.layout is None:
            raise LocalError("declare the model first")
        return self.layout


def _endpoint(told: str | None) -> str:
    """Return where the coordinator is: as told, else as the environment says, else here."""
    if told is not None:
        return read_endpoint(Told("coordinator", told), PORT)
    found = os.environ.get("ZMQPS_COORDINATOR") or LOOPBACK
    return read_endpoint(Told("ZMQPS_COORDINATOR", found), PORT)

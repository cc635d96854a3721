"""Stages of one replica in one thread: real cores and real computing, messages over the wire form.

Shards are played: a fetch brings the rows of `parameters`, a push moves them by the gradient. What
is ready next is drawn at random, so that every order that the network allows occurs.
"""

from collections import deque

import numpy as np

from zmqps.actors.base import Exit, Finished, Note, Post, Posted, Received, Send, Tick, Work
from zmqps.actors.replica.compute import ComputeCore
from zmqps.actors.replica.follower import FollowerCore, StageDuties
from zmqps.actors.replica.orders import (
    Connected,
    DeclareOrder,
    EvaluateOrder,
    EvaluateResult,
    FetchOrder,
    FetchResult,
    ProgressNow,
    PushOrder,
    PushResult,
    Released,
    StopOrder,
)
from zmqps.actors.settings import TrainingSettings
from zmqps.actors.stage.core import StageCore
from zmqps.actors.stage.tasks import BeginWork
from zmqps.actors.stage.team import Seat
from zmqps.data.subset import Subset
from zmqps.models.network import Network
from zmqps.models.partition.planner import plan
from zmqps.optim.clip import clip_by_global_norm
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Release, Welcome
from zmqps.protocol.parts import Version
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.share import Share
from zmqps.protocol.wire import decode, encode
from zmqps.runtime.compute import evaluate
from zmqps.runtime.stage_compute import StageCompute

RELEASE = Release(0, 1, 0, 0)
RATE = 0.5


class Stages:
    """`stages` processes of a replica with a model of its own settings; see the module."""

    def __init__(
        self, model, data, layers, *, stages=2, slots=2, luck=0, digests=None, **training
    ):  # fmt: skip
        self.data = data
        self.training = TrainingSettings(steps=3, batch=8, **training)
        self.cut = plan(layers, data.input_shape, stages, spread=True)
        self.layout = Layout(tuple(t for la in layers for t in la.tensors), 256)
        rng = np.random.default_rng(5)
        self.parameters = {
            t.name: rng.normal(0, 0.3, t.shape).astype(t.dtype) for t in self.layout.tensors
        }
        self.shares = [
            Share(self.layout, {t.spec.name: t.rows for t in self.cut.tensors(stage)})
            for stage in range(stages)
        ]
        self.now = 100.0
        self.rng = np.random.default_rng(luck)
        self.notes = [[] for _ in range(stages)]
        self.told = [[] for _ in range(stages)]  # to the control core
        self.exits = {}
        self.links = {}  # (stage, link) → stage
        self.queues = {}  # (from, to) → messages under way; (stage,) → events of its own
        self.lost = set()  # stages that neither hear nor say anything any more
        self.computes, self.cores = [], []
        for stage in range(stages):
            declare = DeclareOrder("j", self.layout, {}, {}, {}, 10, 0, stages, self.shares[stage])
            inner = (FollowerCore if stage else ComputeCore)(
                self.training, self.layout, seed=1, push_window_bytes=1 << 30, status_every_s=1e9,
                share=self.shares[stage],
            )  # fmt: skip
            digest = (digests or ["d"] * stages)[stage]
            seat = Seat(
                stage, stages, digest, "host", (f"ipc://{stage}",), ("ipc://0",) if stage else ()
            )
            self.cores.append(StageCore(inner, seat, StageDuties(declare), at_once=slots))
            self.computes.append(
                StageCompute(self.cut, stage, model, data, self.training, seed=1, slots=slots)
            )
        for stage in range(stages):
            self.event(stage, Posted(Connected(welcome(10 + stage), "host")))

    # --- Events -----------------------------------------------------------------------------------

    def event(self, stage, event):
        """Hand in an event; what it brings about waits in queues, except slow work."""
        if stage in self.exits or stage in self.lost:
            return
        core = self.cores[stage]
        effects = core.handle(event, self.now)
        core.check_invariants()
        for effect in effects:
            match effect:
                case Send(link, message, arrays):
                    frames = [bytes(frame) for frame in encode(message, arrays)]
                    self.queue(stage, self.links[stage, link]).append(frames)
                case Work(task):
                    self.queue(stage).append(task)
                case Post("control", item):
                    self.told[stage].append(item)
                case Post("fetch" | "push", item):
                    self.queue(stage, "shards").append(item)
                case Note(event_):
                    self.notes[stage].append(event_)
                case Exit(error):
                    self.exits[stage] = error
                case _:  # Open
                    self.links[stage, effect.link] = int(effect.endpoint.removeprefix("ipc://"))

    def queue(self, *ends):
        return self.queues.setdefault(ends, deque())

    def run(self):
        """Let everything happen that is under way, in any order."""
        while ready := [ends for ends, queue in self.queues.items() if queue]:
            ends = ready[self.rng.integers(len(ready))]
            self.deliver(ends, self.queues[ends].popleft())
        return self

    def deliver(self, ends, item):
        match ends:
            case (stage,):
                compute = self.computes[stage]
                do = compute.begin if isinstance(item, BeginWork) else compute.resume
                try:
                    self.event(stage, Finished(item, do(item)))
                except ValueError as error:
                    self.event(stage, Finished(item, error=str(error)))
            case (stage, "shards"):
                self.event(stage, Posted(self.shards(stage, item)))
            case (_, to):
                message, arrays = decode(item)
                self.event(to, Received("front", message, arrays))

    def shards(self, stage, order):
        """Answer a fetch, or apply a push."""
        share = self.shares[stage]
        whole = Share.whole(self.layout)
        if isinstance(order, FetchOrder):
            blocks = {
                key: (Version(1, 1), whole.view(self.parameters, key)[start:stop].copy())
                for key, (_, start, stop) in share.by_key.items()
            }
            return FetchResult(order.number, order.step, blocks, share.nbytes)
        assert isinstance(order, PushOrder)
        for key, (_, start, stop) in share.by_key.items():
            rows = whole.view(self.parameters, key)[start:stop]
            rows -= RATE * share.view(order.arrays, key)
        return PushResult(order.number, share.nbytes, 0, 0, order.incarnation)

    # --- Whole scenes -----------------------------------------------------------------------------

    def tick(self, seconds=0.3):
        self.now += seconds
        for stage in range(len(self.cores)):
            self.event(stage, Tick())
        return self

    def gather(self):
        """Let the stages find each other."""
        self.tick().run()
        return self

    def release(self):
        self.event(0, Posted(Released(RELEASE)))
        return self.run()

    def stop(self):
        self.event(0, Posted(StopOrder("done")))
        return self.run()

    def evaluate(self):
        """Return what the replica measures."""
        self.event(0, Posted(EvaluateOrder(1)))
        self.run()
        return [item for item in self.told[0] if isinstance(item, EvaluateResult)][-1]

    def reports(self, stage=0):
        return [item for item in self.told[stage] if isinstance(item, ProgressNow)]

    def of(self, kind, stage=0):
        return [note for note in self.notes[stage] if isinstance(note, kind)]


def welcome(incarnation):
    limits = ClusterSettings(deadline_ms=30_000).model_dump()
    return Welcome(incarnation, "name", "run", "/run", "host", limits)


def alone(rig, model, data, start):
    """Do what these stages do in one piece; return the parameters, and the loss of each step."""
    network = Network(model, data.input_shape, data.classes)
    subset = Subset(1, len(data.x_train), 0, 1, rig.training.batch, 0)
    parameters = {name: array.copy() for name, array in start.items()}
    gradient = {name: np.empty_like(array) for name, array in parameters.items()}
    losses = []
    for step in range(rig.training.steps):
        x, y = data.batch(subset.indices(step), model.dtype)
        loss, _ = network.loss_and_gradient(
            parameters, x, y, gradient, (1, step), l2=rig.training.l2
        )
        if rig.training.clip_norm is not None:
            clip_by_global_norm(list(gradient.values()), rig.training.clip_norm)
        for name, array in parameters.items():
            np.subtract(array, RATE * gradient[name], out=array)
        losses.append(loss)
    return parameters, losses, evaluate(network, parameters, data)

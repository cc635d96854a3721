"""Whatever a broker does, every push is acknowledged once and applied once."""

import numpy as np
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.actors.replica.scripted import (
    Script,
    Shards,
    filled,
    items,
    layout_of,
    of,
    routed,
    table_of,
)
from zmqps.actors.base import Exit, Posted, Received
from zmqps.actors.replica.orders import PushOrder, PushResult
from zmqps.actors.replica.push import PushCore
from zmqps.protocol.messages import Attached, Heartbeat, Message, Push, Refused
from zmqps.protocol.parts import BrokerAt


class LossyBroker(RuleBasedStateMachine):
    """A broker that loses, doubles and reorders, over shards whose keys move; then all is well."""

    @initialize(credit=st.sampled_from([10, 40, 1 << 20]))
    def connect(self, credit):
        self.layout = layout_of(rows=10)
        self.owned = table_of(self.layout, 2)  # may be ahead of the client's routes
        self.script, self.shards, self.credit = Script(PushCore()), Shards(self.layout), credit
        self.script.connect(self.layout, self.owned, credit, message_bytes_max=32)
        self.pushes = 0
        self.wire, self.answers = [], []

    def tell(self, event):
        self.wire += of(self.script.tell(event), Push)

    @precondition(lambda self: self.pushes < 5)
    @rule()
    def order(self):
        self.pushes += 1
        arrays = filled(self.layout, float(self.pushes))
        self.tell(Posted(PushOrder(self.pushes, self.pushes, 1, arrays, {})))

    @precondition(lambda self: self.wire)
    @rule(which=st.integers(0, 99), times=st.sampled_from([0, 1, 1, 1, 2]))
    def serve(self, which=0, times=1):
        send = self.wire.pop(which % len(self.wire))
        for _ in range(times):
            if len({self.owned.owner(part.key) for part in send.message.body.parts}) > 1:
                answer = Refused("not_owner", "moved", self.owned.epoch), []
            else:
                answer = self.shards.answer(send.message, send.arrays)
            self.answers.append((send, *answer))

    @precondition(lambda self: self.wire)
    @rule(code=st.sampled_from(["not_ready", "unreachable"]))
    def refuse(self, code):
        self.answers.append((self.wire.pop(0), Refused(code, "not yet"), []))

    @precondition(lambda self: self.answers)
    @rule(which=st.integers(0, 99), times=st.sampled_from([0, 1, 1, 1, 2]))
    def hand_in(self, which=0, times=1):
        send, body, arrays = self.answers.pop(which % len(self.answers))
        for _ in range(times):
            message = Message(50, 1, body, send.message.sequence)
            self.tell(Received("broker", message, arrays))

    @rule(seconds=st.sampled_from([0.3, 1.0]))
    def wait(self, seconds):
        self.pass_time(seconds)
        assume(not of(self.script.effects, Exit))  # at a deadline, after enough bad luck

    def pass_time(self, seconds):
        self.script.receive(Heartbeat())
        self.wire += of(self.script.wait(seconds), Push)

    @rule(shards=st.integers(1, 3))
    def move(self, shards):
        self.owned = table_of(self.layout, shards, self.owned.epoch + 1)

    @rule(number=st.integers(51, 53))
    def route(self, number=54):
        self.tell(Posted(routed(self.owned, BrokerAt(number, "there", (f"tcp://{number}",)))))
        self.wire += of(self.script.receive(Attached(self.credit)), Push)

    def teardown(self):
        """From here on all is well: every push is acknowledged once, and was applied once."""
        if of(self.script.effects, Exit):
            return
        self.route()
        while not self.script.core.requests.idle:
            while self.wire or self.answers:
                self.serve() if self.wire else self.hand_in()
            self.pass_time(1.0)
            assert not of(self.script.effects, Exit)
        results = items(self.script.effects, "owner", PushResult)
        assert sorted(r.number for r in results) == list(range(1, self.pushes + 1))
        assert all(updates == self.pushes for updates in self.shards.updates.values())
        total = sum(range(1, self.pushes + 1))
        for spec in self.layout.tensors:
            assert np.array_equal(self.shards.tensor(spec.name), np.full(spec.shape, total))


LossyBroker.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much],
)  # fmt: skip
TestALossyBroker = LossyBroker.TestCase

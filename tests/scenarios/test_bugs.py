"""The simulator finds bugs: each of these deliberate ones shows within a few seeds."""

from dataclasses import replace
from pathlib import Path

import pytest

from zmqps.actors.base import Post
from zmqps.actors.coordinator import memory
from zmqps.actors.coordinator.assignment import Assignment
from zmqps.actors.coordinator.checkpoints import Checkpoints
from zmqps.actors.coordinator.members import Members
from zmqps.actors.replica.accrual import Accrual
from zmqps.actors.replica.orders import PushResult
from zmqps.actors.replica.push import PushCore
from zmqps.actors.replica.requests import Requests
from zmqps.actors.session import Session
from zmqps.actors.shard import giving, serving
from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.pushes import AtOnce
from zmqps.actors.shard.roster import LiveReplicas
from zmqps.protocol.dedupe import Dedupe
from zmqps.protocol.messages import Fetched
from zmqps.protocol.parts import Part, Receipt, Version
from zmqps.runs.network_file import read_scenario
from zmqps.simulator.disk import Disk
from zmqps.simulator.scenario import play

HERE = Path(__file__).parent
SEEDS = 12


def no_memory_of_pushes(patch):
    patch.setattr(Dedupe, "__contains__", lambda _self, _number: False)


def acknowledged_but_not_applied(patch):
    def apply(self, _push, part, _gradient):
        return Receipt(part.key, "applied", self.blocks.version(self.blocks.by_key[part.key]), 0)

    patch.setattr(AtOnce, "_apply", apply)


def acknowledged_when_sent(patch):
    started = PushCore._started

    def early(self, now):
        orders = [order for order, _ in self._orders] if self.ready else []
        results = [Post("owner", PushResult(order.number, 0, 0, 0)) for order in orders]
        return [*started(self, now), *results]

    patch.setattr(PushCore, "_started", early)


def an_update_without_a_new_version(patch):
    update = Blocks.update

    def silent(self, stored, *rest):
        update(self, stored, *rest)
        stored.updates -= stored.updates == 7

    patch.setattr(Blocks, "update", silent)


def parameters_lent_while_they_are_written(patch):
    def rows(_self, stored, start, stop, *_):
        array = stored.parameters
        return array[start:stop] if array.ndim else array

    patch.setattr(Blocks, "rows", rows)


def gradients_written_while_they_are_sent(patch):
    begin = Accrual.begin
    kept = {}

    def same(self, versions):
        arrays = begin(self, versions)
        if arrays is self._sum:
            self._sum = arrays = kept.setdefault(id(self), arrays)
        return arrays

    patch.setattr(Accrual, "begin", same)


def a_fetch_that_names_a_later_version(patch):
    fetch = serving.fetch

    def later(blocks, body, epoch):
        fetched, arrays = fetch(blocks, body, epoch)
        if not isinstance(fetched, Fetched):
            return fetched, arrays
        parts = tuple(
            Part(p.key, p.start, p.stop, Version(p.version.term, p.version.updates + 1))
            for p in fetched.parts
        )
        return replace(fetched, parts=parts), arrays

    patch.setattr(serving, "fetch", later)


def nothing_is_sent_again(patch):
    send = Requests._send

    def once(self, request, now):
        effect = send(self, request, now)
        request.resend_at = float("inf")
        return effect

    patch.setattr(Requests, "_send", once)


def no_bound_on_what_is_in_flight(patch):
    def pump(self, now):
        effects = []
        while self._queue and self.link.up:
            effects.append(self._send(self._queue.popleft(), now))
        return effects

    patch.setattr(Requests, "pump", pump)


def whoever_lives_is_forgotten_with_those_who_left(patch):
    replace_roster = LiveReplicas.replace

    def all_of_them(self, *roster):
        before = tuple(self.live)
        replace_roster(self, *roster)
        return before

    patch.setattr(LiveReplicas, "replace", all_of_them)


def what_must_arrive_is_told_once(patch):
    patch.setattr(Session, "due", lambda _self, _now: [])
    patch.setattr(Session, "again", lambda _self, _now: [])


def a_coordinator_that_begins_anew_remembers_nothing(patch):
    patch.setattr(Disk, "write_state", lambda _self, _task: None)


def what_is_told_does_not_wait_for_the_disk(patch):
    patch.setattr(memory, "_rests_on_it", lambda _effect: False)


def nobody_is_ever_gone(patch):
    patch.setattr(Members, "silent", lambda _self, _now: ([], []))


def shards_that_serve_on_while_keys_move(patch):
    start = Checkpoints.start
    patch.setattr(Checkpoints, "start", lambda self, told, now, **_: start(self, told, now))


def moved_blocks_forget_which_pushes_they_had(patch):
    copied = giving.copied

    def forgetful(blocks, key):
        copy, arrays = copied(blocks, key)
        return copy._replace(seen=()), arrays

    patch.setattr(giving, "copied", forgetful)


def what_moves_is_forgotten_where_it_was_at_once(patch):
    scale = Assignment.scale

    def hasty(self, *wanted):
        nbytes = scale(self, *wanted)
        self.free()
        return nbytes

    patch.setattr(Assignment, "scale", hasty)


BUGS = [
    (no_memory_of_pushes, "lossy"),
    (acknowledged_but_not_applied, "quiet"),
    (acknowledged_when_sent, "quiet"),
    (an_update_without_a_new_version, "quiet"),
    (parameters_lent_while_they_are_written, "small_messages"),
    (gradients_written_while_they_are_sent, "small_messages"),
    (a_fetch_that_names_a_later_version, "quiet"),
    (nothing_is_sent_again, "lossy"),
    (no_bound_on_what_is_in_flight, "small_messages"),
    (whoever_lives_is_forgotten_with_those_who_left, "lossy_and_crowded"),
    (nobody_is_ever_gone, "synchronous"),
    (what_must_arrive_is_told_once, "coordinator_connections_break"),
    (a_coordinator_that_begins_anew_remembers_nothing, "coordinator_restart"),
    (what_is_told_does_not_wait_for_the_disk, "coordinator_slow_disk"),
    (shards_that_serve_on_while_keys_move, "scale_copies"),
    (moved_blocks_forget_which_pushes_they_had, "scale_synchronous"),
    (what_moves_is_forgotten_where_it_was_at_once, "scale_up_and_down"),
]


@pytest.mark.parametrize(("bug", "name"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_a_bug_is_found(monkeypatch, bug, name):
    bug(monkeypatch)
    scenario = read_scenario(HERE / f"{name}.yaml")
    for seed in range(SEEDS):
        try:
            if play(scenario, seed).problems:
                return
        except AssertionError:
            return
    pytest.fail(f"not found within {SEEDS} seeds of {name}")

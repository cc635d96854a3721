"""Sandblaster on a shard: gradients wait until they are counted, operations write its vectors."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.unit.actors.shard.shard_rig import Rig, arrays, layout, outcomes, parts, rule
from zmqps.actors.base import Array
from zmqps.models.initial import initial_values
from zmqps.optim.vectors import (
    Adopt,
    Allocate,
    Combine,
    Copy,
    Dot,
    Free,
    Largest,
    Operation,
    Scale,
    to_wire,
)
from zmqps.protocol import events, sandblaster_events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Fetch, Fetched, Operate, Operated, Push, Refused
from zmqps.protocol.parts import NEVER, Part, Want

G = "lbfgs/g"


class Bench(Rig):
    """A shard with all of a model, under L-BFGS."""

    def __init__(self, model: Layout | None = None) -> None:
        super().__init__()
        self.request = 0
        self.serve(model or layout(), rule=rule(lbfgs={"history": 2}))

    def operate(self, *operations: Operation, evaluation: int = 0, **more) -> Operated:
        self.request += 1
        order = Operate(
            self.request, evaluation, more.get("gradient", G), tuple(more.get("accepted", ())),
            tuple(more.get("refused", ())), tuple(to_wire(o) for o in operations),
            more.get("whole", len(more.get("accepted", ()))),
        )  # fmt: skip
        (send,) = self.orders(order)
        assert isinstance(send.message.body, Operated)
        assert send.message.body.request == self.request
        return send.message.body

    def push(self, number: int, evaluation: int, scale: float, who: int = 11) -> list[str]:
        body = Push(number, 0, parts(self.blocks), evaluation)
        return outcomes(self.answer(body, arrays(self.blocks, scale), who=who))

    def fetch(self, vector: str) -> dict[int, Array]:
        wants = tuple(Want(b.key, 0, b.stop - b.start, NEVER) for b in self.blocks)
        send = self.answer(Fetch(wants, vector))
        assert isinstance(send.message.body, Fetched), send.message.body
        found = send.message.body.parts
        return {p.key: a.copy() for p, a in zip(found, send.arrays, strict=True)}

    def everywhere(self, vector: str, value: float) -> None:
        for block in self.blocks:
            expected = np.full(block.shape, value, block.dtype)
            assert_array_equal(self.fetch(vector)[block.key], expected)


def test_the_stages_of_a_replica_give_each_their_rows() -> None:
    """Stage 11 has the first row of each block of several, stage 12 the others."""
    bench = Bench()
    bench.operate(Allocate((G,)))
    for who in (11, 12):
        mine = []
        for block in bench.blocks:
            rows = block.stop - block.start
            span = (0, min(1, rows)) if who == 11 else (1, rows)
            mine += [(block, *span)] if span[0] < span[1] else []
        body = Push(1, 0, tuple(Part(b.key, start, stop, NEVER) for b, start, stop in mine), 1)
        sent = tuple(
            np.full((stop - start, *b.shape[1:]) if b.shape else (), who, b.dtype)
            for b, start, stop in mine
        )
        assert set(outcomes(bench.answer(body, sent, who=who))) == {"staged"}
    bench.operate(evaluation=1, accepted=[(11, 1), (12, 1)], whole=1)
    found = bench.fetch(G)
    for block in bench.blocks:
        expected = np.full(block.shape, 12.0, block.dtype)
        (expected[:1] if block.shape else expected)[...] = 11
        assert_array_equal(found[block.key], expected)


def test_the_rows_of_one_stage_alone_do_not_count() -> None:
    bench = Bench()
    bench.operate(Allocate((G,)))
    rows = [block for block in bench.blocks if block.stop - block.start > 1]
    body = Push(1, 0, tuple(Part(b.key, 0, 1, NEVER) for b in rows), 1)
    bench.answer(body, tuple(np.ones((1, *b.shape[1:]), b.dtype) for b in rows))
    assert "missing" in bench.operate(evaluation=1, accepted=[(11, 1)]).error


def test_a_gradient_waits_until_it_is_accepted() -> None:
    bench = Bench()
    bench.operate(Allocate((G,)))
    assert set(bench.push(1, 1, 2.0)) == {"staged"}
    assert set(bench.push(1, 1, 0.25, who=12)) == {"staged"}
    bench.everywhere(G, 0)
    bench.operate(evaluation=1, accepted=[(11, 1)])
    bench.everywhere(G, 2)
    bench.operate(Scale(G, 4.0), evaluation=1, accepted=[(12, 1)])
    bench.everywhere(G, 9)
    kinds = [type(note) for note in bench.notes]
    assert kinds.count(sandblaster_events.Staged) == 2
    assert kinds.count(sandblaster_events.OperationsDone) == 3
    assert events.Applied not in kinds


def test_a_refused_gradient_is_forgotten() -> None:
    bench = Bench()
    bench.operate(Allocate((G,)))
    bench.push(1, 1, 2.0)
    bench.operate(evaluation=1, refused=[(11, 1)])
    answer = bench.operate(evaluation=1, accepted=[(11, 1)])
    assert "missing" in answer.error
    bench.everywhere(G, 0)


def test_the_sum_begins_anew_with_each_evaluation_and_older_gradients_are_late() -> None:
    bench = Bench()
    bench.operate(Allocate((G,)))
    bench.push(1, 1, 2.0)
    bench.push(2, 1, 2.0)
    bench.push(3, 2, 1.0)  # of an evaluation that this shard has not heard of yet
    bench.operate(evaluation=1, accepted=[(11, 1)])
    bench.operate(evaluation=2, accepted=[(11, 3)])
    bench.everywhere(G, 1)
    assert set(bench.push(4, 1, 5.0)) == {"late"}
    assert "missing" in bench.operate(evaluation=2, accepted=[(11, 2)]).error


def test_the_same_push_again_is_a_duplicate_and_counts_once() -> None:
    bench = Bench()
    bench.operate(Allocate((G,)))
    bench.push(1, 1, 2.0)
    assert set(bench.push(1, 1, 2.0)) == {"duplicate"}
    bench.operate(evaluation=1, accepted=[(11, 1)])
    bench.everywhere(G, 2)


def test_one_who_leaves_takes_what_waits_along() -> None:
    bench = Bench()
    bench.operate(Allocate((G,)))
    bench.push(1, 1, 2.0, who=12)
    bench.roster(11)
    assert "missing" in bench.operate(evaluation=1, accepted=[(12, 1)]).error


def test_gradients_that_are_not_finite_are_kept() -> None:
    bench = Bench()
    bench.operate(Allocate((G,)))
    assert set(bench.push(1, 1, np.inf)) == {"staged"}
    answer = bench.operate(Largest(G), evaluation=1, accepted=[(11, 1)])
    assert answer.scalars == (np.inf,)


def test_operations_reach_the_parameters_and_a_fetch_shows_them() -> None:
    bench = Bench()
    before = bench.fetch("")
    first = {b.key: initial_values(b, 7) for b in bench.blocks}
    for key, values in first.items():
        assert_array_equal(before[key], values)
    answer = bench.operate(
        Allocate(("lbfgs/t",)), Copy("lbfgs/t", "x"), Scale("lbfgs/t", 2.0), Dot("x", "lbfgs/t")
    )
    squares = sum(float(np.sum(np.square(v, dtype=np.float64))) for v in first.values())
    assert answer.scalars == (pytest.approx(2 * squares),)
    bench.operate(Adopt(1, ("x",), ("lbfgs/t",)), Adopt(1, ("x",), ("lbfgs/t",)))
    for key, values in bench.fetch("").items():
        assert_array_equal(values, 2 * first[key])
    for key, values in before.items():
        assert_array_equal(values, first[key])  # what was given away stays as it was


def test_a_fetched_vector_does_not_change_under_its_reader() -> None:
    bench = Bench(layout(rows=1 << 15, block_bytes=1 << 20))
    bench.operate(Allocate((G,)))
    wants = tuple(Want(b.key, 0, b.stop - b.start, NEVER) for b in bench.blocks)
    send = bench.answer(Fetch(wants, G))
    given: Sequence[Array] = send.arrays
    assert max(array.nbytes for array in given) > 64 << 10
    bench.operate(Copy(G, "x"))
    assert not any(array.any() for array in given)


@pytest.mark.parametrize(
    "operation",
    [Copy("lbfgs/a", "x"), Copy("x", "lbfgs/a"), Dot("lbfgs/a", "x"), Copy("accumulator", "x"),
     Allocate(("accumulator",)), Free(("accumulator",)), Combine("x", (1.0,), ("h",))],
)  # fmt: skip
def test_a_vector_that_is_not_there_is_the_answers_error(operation: Operation) -> None:
    bench = Bench()
    answer = bench.operate(operation)
    assert "operations" in answer.error
    assert answer.scalars == ()


def test_what_is_no_operation_changes_nothing() -> None:
    bench = Bench()
    (send,) = bench.orders(Operate(1, 0, "", (), (), (["Scale", "x", 2.0], ["Explode", "x"])))
    assert isinstance(send.message.body, Operated)
    assert "Explode" in send.message.body.error
    for block in bench.blocks:
        assert_array_equal(bench.fetch("")[block.key], initial_values(block, 7))


def test_no_answer_is_sent_when_none_is_asked_for() -> None:
    bench = Bench()
    assert bench.orders(Operate(0, 1, "", (), (), ())) == []


def test_a_fetch_of_a_vector_that_is_not_there_yet_is_to_be_tried_again() -> None:
    bench = Bench()
    block = bench.blocks[0]
    send = bench.answer(Fetch((Want(block.key, 0, 1, NEVER),), "lbfgs/trial"))
    assert isinstance(send.message.body, Refused)
    assert send.message.body.code == "not_ready"


def test_a_shard_of_downpour_has_no_vectors() -> None:
    rig = Rig().serve()
    (send,) = rig.orders(Operate(1, 0, "", (), (), (["Zero", "x"],)))
    assert "no vectors" in send.message.body.error

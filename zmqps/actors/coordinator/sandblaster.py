"""Sandblaster L-BFGS ([D] section 4.2): the coordinator's loop. Part of the coordinator.

`optim.lbfgs` decides; this turns its requests into messages and their answers into its answers. An
`Operate` goes to every shard; an `Evaluate` is handed out to the replicas in portions, and is done
when each portion is counted once. The coordinator holds scalars only, as many whatever the model.

A search is at an iterate until it adopts the next one, and leaves the iterate's vectors alone. So
a checkpoint, or a measurement on the test set, may begin at any time; the next iterate is adopted
when they are done.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zmqps.actors.base import Effect, Note
from zmqps.actors.coordinator.figures import Figures
from zmqps.actors.coordinator.members import Member, Members
from zmqps.actors.coordinator.portion_size import PortionSize
from zmqps.actors.coordinator.portions import Portions
from zmqps.actors.coordinator.tasks import MetricsRow
from zmqps.optim.lbfgs import (
    Evaluate,
    Iterated,
    Limits,
    Prepared,
    Request,
    Result,
    Search,
    State,
    minimise,
)
from zmqps.optim.lbfgs import (
    Operate as Operations,
)
from zmqps.optim.settings import LbfgsSettings
from zmqps.optim.vectors import Operation, Scale, join, to_wire
from zmqps.protocol import sandblaster_events as events
from zmqps.protocol.messages import Operate, Operated, Portion, PortionDone, PortionsSent

NUMBERS = 100
"""Numbers of evaluations that are kept at a time, ahead of their use."""

SETTLE_S = 0.1
"""How long the shards may wait to be told which gradients count, so that it is of several at a
time: each time costs a message for each shard."""


@dataclass(slots=True)
class _Evaluation:
    """An evaluation under way: its portions, and what those counted so far sum to."""

    request: Evaluate
    portions: Portions
    began_at: float
    loss_sum: float = 0.0
    correct: int = 0


class Sandblaster:
    """The loop; `result` is None while it runs.

    `samples` is the size of a batch, `replicas` are to share it; `shards()` returns those that hold
    the vectors, in an order that stays, so that sums are the same each time. `saved` is to be
    called when what `to_keep` returns is on disk; `reads()` says that somebody reads the vectors of
    the iterate.
    `state` is the iterate's (None: the first one), as far as any message to the shards can tell
    from now on; `kept` is what another coordinator would go on from: the same, or the next one,
    that they may not have adopted.
    """

    def __init__(
        self, members: Members, settings: LbfgsSettings, samples: int, *,
        replicas: int, shards: Callable[[], list[Member]], reads: Callable[[], bool],
    ):  # fmt: skip
        self.members = members
        self.settings = settings
        self.samples = samples
        given = None if settings.portion == "auto" else settings.portion
        self.size = PortionSize(given, samples, replicas)
        self.state: State | None = None
        self.kept: State | None = None
        self.result: Result | None = None
        self.problem = ""
        self.evaluation = 0
        self.correct = 0  # of the last whole evaluation
        self._shards, self._reads = shards, reads
        self._saved = False
        self._search: Search | None = None
        self._request: Request | None = None
        self._answer: tuple[float, ...] | None = None  # to the request, when it is there
        self.request = 0  # number of the last order that shards answer
        self._scalars: dict[int, tuple[float, ...]] = {}  # by the incarnations of shards
        self._work: _Evaluation | None = None
        self._given_up = False  # the evaluation is to begin anew, in portions of another size
        self._settled: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._settled_at = 0.0
        self._whole = 0  # gradients that the accepted of `_settled` make
        self._ahead: list[Operation] = []  # before the next operations
        self._gradient = ""  # where the gradients of the newest evaluation are summed
        self._operate_began = 0.0
        self._evaluate_s = self._operate_s = 0.0  # since the last iteration
        self._handed_again = 0
        self._iteration_at = 0.0
        self._computed_s, self._computed = 0.0, 0  # portions, and what they took
        self._done: list[State] = []  # that no row of the metrics tells yet

    @property
    def running(self) -> bool:
        """Whether it has begun and not ended."""
        return self._search is not None and self.result is None and not self.problem

    def begin(self, kept: Mapping[str, Any], now: float, *, moved: bool = False) -> None:
        """Begin ({}), or go on from a state whose vectors the shards hold (see `minimise`).

        `kept` is what `to_keep` or `to_plain` returned. Its "evaluation" and "request" are the
        highest numbers ever used: they only rise, so what is on its way of an older one is late.
        """
        state = State.from_plain(kept["state"]) if kept.get("state") else None
        settings = self.settings
        limits = Limits(
            history=settings.history,
            iterations=settings.iterations,
            evaluations=settings.evaluations,
            gradient=settings.gradient_tolerance,
            decrease=settings.decrease_tolerance,
            curvature=settings.curvature,
            batches=settings.batch != "full",
        )
        self.evaluation, self.request = kept.get("evaluation", 0), kept.get("request", 0)
        self._search, self.state, self.kept = minimise(limits, state, moved=moved), state, state
        self._request = self._answer = self._work = None
        self.size.size = self.size.size or kept.get("portion")
        self._given_up = False
        self._scalars, self._settled, self._ahead, self._whole = {}, ([], []), [], 0
        self._iteration_at = now

    def stop(self) -> None:
        """Compute no more."""
        if self.running:
            self.problem = self.problem or "stopped"

    # --- What members say -------------------------------------------------------------------------

    def operated(self, shard: Member, answer: Operated) -> None:
        """Take a shard's scalars."""
        if answer.request != self.request or not isinstance(self._request, Operations):
            return
        if answer.error:
            self.problem = f"{shard.name}: {answer.error}"
        self._scalars[shard.incarnation] = answer.scalars

    def computed(self, replica: Member, done: PortionDone) -> None:
        """Note that a replica has computed a portion."""
        work = self._work
        if work is None or done.evaluation != self.evaluation:
            return
        work.portions.computed(replica.incarnation, done.portion)
        start, stop = work.portions.bounds(done.portion)
        took_s, last = done.compute_ms / 1e3, work.portions.count == 1
        self._computed_s, self._computed = self._computed_s + took_s, self._computed + 1
        if self.size.computed(stop - start, took_s, last=last):
            self._given_up = work.portions.size != self.size.size

    def sent(self, replica: Member, sent: PortionsSent) -> list[Effect]:
        """Count the portions that all shards have, or refuse them as a whole."""
        work, stages = self._work, self.members.stages_of(replica)
        if work is None or sent.evaluation != self.evaluation:
            return []
        if len(stages) + 1 != replica.stages:
            work.portions.leave(replica.incarnation)  # what the lost stage sent goes with it
        counts = work.portions.sent(replica.incarnation, sent.portions)
        who = [(stage.incarnation, sent.push) for stage in (replica, *stages)]
        self._settled[0 if counts else 1].extend(who)
        self._whole += counts
        if counts:
            work.loss_sum += sent.loss_sum
            work.correct += sent.correct
        note = events.PortionsCounted(
            evaluation=sent.evaluation,
            replica=replica.incarnation,
            push=sent.push,
            portions=list(sent.portions),
            counted=counts,
            loss_sum=sent.loss_sum,
        )
        return [Note(note)]

    def left(self, member: Member) -> None:
        """Take back what a member had; shards hear first what counts of that, then that it left."""
        self._settled_at = -SETTLE_S
        if member.role == "replica" and self._work is not None:
            self._work.portions.leave(member.incarnation)

    # --- What is due ------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Effect]:
        """Do what can be done now."""
        effects: list[Effect] = []
        if self.running and isinstance(self._request, Evaluate) and self._given_up:
            self._begin_evaluation(self._request, now)
        while self.running:
            if self._request is not None:
                self._look(now)
                if self._answer is None:
                    break
            effects += self._next(now)
        effects += self._hand_out(now) if self.running else []
        return [*effects, *self._settle(now)]

    def _look(self, now: float) -> None:
        """See whether the request's answer is there."""
        shards = self._shards()
        match self._request:
            case Operations(operations) if all(s.incarnation in self._scalars for s in shards):
                slices = [self._scalars[shard.incarnation] for shard in shards]
                self._operate_s += now - self._operate_began
                self._answer = join(operations, slices) if shards else None
            case Evaluate() if self._work and self._work.portions.done and not self._given_up:
                self._evaluated(self._work, now)
            case Prepared(state) if self._saved and not self._reads():
                self.state = replace(state, adopted=True)
                self._answer = ()

    def _evaluated(self, work: _Evaluation, now: float) -> None:
        """Make the mean of the sums; shards do so before whatever comes next."""
        self._evaluate_s += now - work.began_at
        self._handed_again += work.portions.handed_again
        self.correct = work.correct
        self._ahead.append(Scale(work.request.gradient, 1 / self.samples))
        self._answer, self._work = (work.loss_sum / self.samples,), None

    def saved(self) -> None:
        """Take note that the state is written down."""
        self._saved = True

    def _next(self, now: float) -> list[Effect]:
        """Ask the search for its next request, and begin it."""
        assert self._search is not None
        try:
            if self._request is None:
                self._request = next(self._search)
            else:
                assert self._answer is not None
                self._request = self._search.send(self._answer)
        except StopIteration as end:
            self.result = end.value
            return []
        self._answer = None
        match self._request:
            case Operations(operations):
                return self._operate(operations, now)
            case Evaluate() as request:
                self._begin_evaluation(request, now)
            case Prepared(state):
                self.kept, self._saved = state, False
            case Iterated(state):
                self._answer = ()
                return [self._iterated(state, now)]
        return []

    def _operate(self, operations: tuple[Operation, ...], now: float) -> list[Effect]:
        self.request += 1
        self._scalars, self._operate_began = {}, now
        return self._to_shards((*self._ahead, *operations), self.request, now)

    def _settle(self, now: float) -> list[Effect]:
        """Tell the shards which gradients count, and which do not: of several at a time."""
        if not any(self._settled) or now - self._settled_at < SETTLE_S:
            return []
        return self._to_shards((), 0, now)

    def _to_shards(
        self, operations: tuple[Operation, ...], request: int, now: float
    ) -> list[Effect]:
        (accepted, refused), whole = self._settled, self._whole
        self._settled, self._settled_at, self._whole = ([], []), now, 0
        self._ahead = [] if request else self._ahead
        order = Operate(
            request=request,
            evaluation=self.evaluation,
            gradient=self._gradient,
            accepted=tuple(accepted),
            refused=tuple(refused),
            operations=tuple(to_wire(operation) for operation in operations),
            whole=whole,
        )
        return [*self.members.send_all(self._shards(), order, now)]

    def _begin_evaluation(self, request: Evaluate, now: float) -> None:
        self.evaluation += 1
        self._gradient, self._given_up, self._settled = request.gradient, False, ([], [])
        self._whole = 0
        replicas = [replica.incarnation for replica in self._free()]
        copies = self.settings.copies
        portions = Portions(self.samples, self.size.next, replicas, copies=copies)
        self._work = _Evaluation(request, portions, now)

    def _iterated(self, state: State, now: float) -> Note:
        self._done.append(state)
        note = events.IterationDone(
            iteration=state.iteration,
            evaluations=state.evaluations,
            loss=state.loss,
            gradient_max=state.gradient,
            step=state.stretch,
            pairs=len(state.pairs),
            skipped=state.skipped,
            handed_again=self._handed_again,
            seconds=now - self._iteration_at,
            evaluate_ms=self._evaluate_s * 1e3,
            operate_ms=self._operate_s * 1e3,
        )
        self._iteration_at = now
        self._evaluate_s = self._operate_s = 0.0
        self._handed_again = 0
        return Note(note)

    def rows(self, figures: Figures, now: float) -> tuple[MetricsRow, ...]:
        """Return a row of the metrics for each iteration since the last call."""
        done, self._done = self._done, []
        return tuple(
            figures.row_of(now, iteration=s.iteration, objective=s.loss, gradient_max=s.gradient)
            for s in done
        )

    def _free(self) -> list[Member]:
        return [r for r in self.members.replicas if r.released and not r.stopped]

    def _hand_out(self, now: float) -> list[Effect]:
        work = self._work
        if work is None or not work.portions.available:
            return []
        effects: list[Effect] = []
        for replica in self._free():
            who = replica.incarnation
            work.portions.join(who)
            handed = work.portions.hand(who)
            if handed:
                effects.append(Note(events.PortionsHanded(self.evaluation, who, handed)))
            for number in handed:
                start, stop = work.portions.bounds(number)
                portion = Portion(
                    self.evaluation, work.request.point, work.request.batch, number, start, stop
                )
                effects.append(self.members.send(replica, portion, now))
        return effects

    def to_plain(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, plain values."""
        state = self.state.to_plain() if self.state is not None else None
        numbers = {"evaluation": self.evaluation, "request": self.request}
        return {"state": state, "portion": self.size.size, **numbers}

    def to_keep(self) -> dict[str, Any]:
        """Return what a coordinator that is started anew goes on from, plain values.

        `evaluation` is ahead, so that it need not be written with each one.
        """
        state = self.kept.to_plain() if self.kept is not None else None
        ahead = (self.evaluation // NUMBERS + 1) * NUMBERS
        return {"state": state, "portion": self.size.size, "evaluation": ahead}

    @property
    def key(self) -> tuple[int, int, int]:
        """Changes with what `to_keep` returns."""
        iteration = self.kept.iteration if self.kept is not None else -1
        return iteration, self.evaluation // NUMBERS, self.size.size or 0

    @property
    def portions(self) -> Portions | None:
        """Those of the evaluation under way; None between two."""
        return self._work.portions if self._work is not None else None

    def summary(self) -> dict[str, Any]:
        """Return the tree "lbfgs" of the summary; `reason` is None when something else ended it."""
        state, result = self.state or State(), self.result
        return {
            "reason": result.reason if result else None,
            "iterations": state.iteration,
            "evaluations": result.state.evaluations if result else state.evaluations,
            "loss": state.loss,
            "gradient_max": state.gradient,
            "skipped": state.skipped,
            **self.costs(),
        }

    def costs(self) -> dict[str, Any]:
        """Return the samples of a portion, what would fit, and milliseconds that one took."""
        mean_ms = 1e3 * self._computed_s / self._computed if self._computed else None
        size = self.size
        return {"portion": size.size, "portion_fitting": size.fitting, "portion_ms": mean_ms}

    def check_invariants(self) -> None:
        """Raise AssertionError when the parts contradict each other."""
        if self._work is not None:
            self._work.portions.check_invariants()

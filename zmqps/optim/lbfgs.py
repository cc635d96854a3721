"""L-BFGS over vectors that nobody holds whole ([D] section 4.2).

Written once, as a generator that asks for operations on named vectors and for losses, and is told
scalars. Over NumPy arrays `zmqps.optim.local` answers; in a cluster the coordinator does, with
shards that hold the vectors and replicas that compute losses.

The direction is that of the two-loop recursion (Nocedal, Math. Comp. 35, 1980), in the vector-free
form of Chen, Wang & Zhou (NIPS 2014): it is a combination of the basis s_1..s_h, y_1..y_h, g, and
its factors follow from the basis' dot products alone. So an iteration costs a fixed number of
round trips, whatever the history, and what travels does not depend on the number of parameters.
"""

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from zmqps.optim.line_search import LineSearch, Point
from zmqps.optim.vectors import (
    Adopt,
    Allocate,
    Axpy,
    Combine,
    Copy,
    Dot,
    Free,
    Largest,
    Operation,
)

X: Final = "x"  # the parameters
G: Final = "lbfgs/g"
TRIAL: Final = "lbfgs/trial"
TRIAL_G: Final = "lbfgs/trial_g"
DIRECTION: Final = "lbfgs/d"
WORKING: Final = (G, TRIAL, TRIAL_G, DIRECTION)

Curvature = Literal["skip", "damp"]

SLOPE_LEAST = 1e-16  # a pair with s · y at most this times y · y says nothing, and is bad
DAMPED = 0.2  # damping makes s · y at least this share of s · s / γ


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop, and how much to remember. `batches`: each iteration has a batch of its own.

    `gradient`: max |g_i|; `decrease`: (f_k - f_k+1) / max(|f_k|, |f_k+1|, 1), looked at only when
    all iterations have the same batch.
    """

    history: int = 10
    iterations: int = 15_000
    evaluations: int = 15_000
    gradient: float = 1e-5
    decrease: float = 2.2e-9
    curvature: Curvature = "skip"
    batches: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """All that the coordinator knows between two iterations; small, whatever the parameters.

    `pairs` are the slots of history in use, the oldest first; `dots` the products of any two basis
    vectors, by names. `loss` and `gradient` (max |g_i|) belong to the vectors "x" and "lbfgs/g".
    `stretch`: the last accepted step. `reset`: the history was dropped after a failed line search.
    `adopted`: "x" and "lbfgs/g" are those of this state; else they are still in the trial vectors.
    """

    iteration: int = 0
    evaluations: int = 0
    loss: float = 0.0
    gradient: float = 0.0
    pairs: tuple[int, ...] = ()
    dots: Mapping[tuple[str, str], float] = field(default_factory=dict)
    skipped: int = 0
    stretch: float = 0.0
    reset: bool = False
    adopted: bool = True

    def to_plain(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        dots = [[a, b, value] for (a, b), value in self.dots.items()]
        return asdict(replace(self, dots={})) | {"dots": dots, "pairs": list(self.pairs)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "State":
        """Read what `to_plain` gave."""
        dots = {(a, b): float(value) for a, b, value in plain["dots"]}
        return cls(**{**plain, "dots": dots, "pairs": tuple(plain["pairs"])})


@dataclass(frozen=True, slots=True)
class Operate:
    """Carry out these operations on all slices; the answer is their scalars."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Compute the mean loss of a batch at vector `point`, and its gradient into `gradient`.

    The answer is (loss,). Iterations of the same `batch` see the same samples.
    """

    point: str
    gradient: str
    batch: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """The next state is known: whoever wants to go on from it saves it now. The answer is ()."""

    state: State


@dataclass(frozen=True, slots=True)
class Iterated:
    """An iteration is done, its vectors are in place. The answer: () to go on, else to stop."""

    state: State


Request = Operate | Evaluate | Prepared | Iterated
Reason = Literal["gradient", "decrease", "iterations", "evaluations", "line_search", "stopped"]


@dataclass(frozen=True, slots=True)
class Result:
    """Why it ended, and where. `text` says it for people."""

    reason: Reason
    text: str
    state: State


Search = Generator[Request, tuple[float, ...], Result]


def minimise(limits: Limits, state: State | None = None, *, moved: bool = False) -> Search:
    """Minimise from vector "x" on; from `state`, with the vectors as they were then.

    `moved`: the function may not be that of the state; loss and gradient are computed anew.
    Ends with a `Result`; "x", "lbfgs/g" and the history are those of its state, so that one can go
    on from it with other limits.
    """
    yield Operate((Allocate(WORKING),))
    if state is None:
        state = yield from _first()
    elif not state.adopted:
        state = yield from _adopted(state)
        yield Iterated(state)
    if moved:
        state = yield from _rebatched(limits, state)
    result = _converged(limits, state) or _spent(limits, state)
    while result is None:
        before = state
        if limits.batches and state.iteration:
            state = yield from _rebatched(limits, state)
            if result := _converged(limits, state):
                break
        found = yield from _iteration(limits, state)
        if isinstance(found, Result):
            result = found
            break
        yield Prepared(found)
        state = yield from _adopted(found)
        stop = yield Iterated(state)
        # On a batch of its own the point it was fitted to proves nothing.
        result = None if limits.batches else _converged(limits, state, before.loss)
        result = result or _spent(limits, state)
        if stop and result is None:
            result = Result("stopped", f"stopped after {state.iteration} iterations", state)
    yield Operate((Free(WORKING[1:]),))
    return result


def _first() -> Generator[Request, tuple[float, ...], State]:
    (loss,) = yield Evaluate(X, G, 0)
    square, largest = yield Operate((Dot(G, G), Largest(G)))
    return State(0, 1, loss, largest, dots={(G, G): square})


def _adopted(state: State) -> Generator[Request, tuple[float, ...], State]:
    """Put the vectors of a state in place; asking twice does no harm."""
    yield Operate((Adopt(state.iteration, (X, G), (TRIAL, TRIAL_G)),))
    return replace(state, adopted=True)


def _rebatched(limits: Limits, state: State) -> Generator[Request, tuple[float, ...], State]:
    """Evaluate the same point on the next batch: differences of gradients need one batch."""
    (loss,) = yield Evaluate(X, G, _batch(limits, state))
    names = _names(state.pairs)
    found = yield Operate((*(Dot(G, name) for name in names), Dot(G, G), Largest(G)))
    *products, square, largest = found
    dots = {key: value for key, value in state.dots.items() if G not in key} | {(G, G): square}
    dots |= {(name, G): value for name, value in zip(names, products, strict=True)}
    evaluations = state.evaluations + 1
    return replace(state, evaluations=evaluations, loss=loss, gradient=largest, dots=dots)


def _iteration(
    limits: Limits, state: State
) -> Generator[Request, tuple[float, ...], State | Result]:
    """Make one step: direction, line search, a new pair of history."""
    names = (*_names(state.pairs), G)
    factors = direction(state.pairs, state.dots)
    unit = 1 / max(state.dots[G, G], 1e-300) ** 0.5
    # The first step of all is of length 1, as in L-BFGS-B: nothing tells the scale of -g.
    first = 1.0 if state.pairs else min(1.0, unit) if state.iteration else unit
    made = Combine(DIRECTION, factors, names)
    (slope,) = yield Operate((made, Dot(DIRECTION, G), *_move(first)))
    search = LineSearch(Point(0.0, state.loss, slope), first)
    batch, placed = _batch(limits, state), first
    while not search.done:
        if search.step != placed:
            yield Operate(_move(search.step))
            placed = search.step
        (loss,) = yield Evaluate(TRIAL, TRIAL_G, batch)
        (slope,) = yield Operate((Dot(TRIAL_G, DIRECTION),))
        state = replace(state, evaluations=state.evaluations + 1)
        search.tell(loss, slope)
        if state.evaluations >= limits.evaluations and not search.done:
            break
    best = search.best
    if not best.step or (search.failed and not best.loss < state.loss):
        return (yield from _without_step(limits, state, search))
    if best.step != placed:
        yield Operate(_move(best.step))
        (loss,) = yield Evaluate(TRIAL, TRIAL_G, batch)
        state = replace(state, evaluations=state.evaluations + 1)
    return (yield from _accept(limits, state, best))


def _without_step(
    limits: Limits, state: State, search: LineSearch
) -> Generator[Request, tuple[float, ...], State | Result]:
    """Try the steepest descent once; if that finds no lower loss either, this is the end."""
    if state.evaluations >= limits.evaluations:
        return Result("evaluations", f"{state.evaluations} evaluations are the limit", state)
    if state.pairs:
        fresh = replace(state, pairs=(), dots={(G, G): state.dots[G, G]}, reset=True)
        return (yield from _iteration(limits, fresh))
    text = f"no step along the gradient lowers the loss {state.loss:.9g}: {search.failed}"
    return Result("line_search", text, state)


def _accept(
    limits: Limits, state: State, best: Point
) -> Generator[Request, tuple[float, ...], State]:
    """Make the state at the trial point; its differences become the newest pair, unless bad.

    No vector of the old state is written, so that one can go on from either.
    """
    slot = _free_slot(state.pairs)
    s, y = _pair(slot)
    kept = state.pairs[max(0, len(state.pairs) + 1 - limits.history) :]
    names = _names(kept)
    products = [Dot(a, b) for a in (s, y, TRIAL_G) for b in names]
    own = (Dot(s, s), Dot(s, y), Dot(y, y), Dot(s, TRIAL_G), Dot(y, TRIAL_G))
    answer = yield Operate(
        (
            Allocate((s, y)),
            Combine(s, (1.0, -1.0), (TRIAL, X)),
            Combine(y, (1.0, -1.0), (TRIAL_G, G)),
            *products,
            *own,
            Dot(TRIAL_G, TRIAL_G),
            Largest(TRIAL_G),
        )
    )
    *found, ss, sy, yy, sg, yg, gg, largest = answer
    table = dict(zip(((a, b) for a in (s, y, G) for b in names), found, strict=True))
    old = {key: value for key, value in state.dots.items() if set(key) <= set(names)}
    moved = replace(
        state,
        iteration=state.iteration + 1,
        loss=best.loss,
        gradient=largest,
        stretch=best.step,
        adopted=False,
    )
    dots = {**old, **table, (s, s): ss, (s, y): sy, (y, y): yy, (s, G): sg, (y, G): yg, (G, G): gg}
    if limits.curvature == "damp" and (damped := _damping(kept, dots, ss, sy)) is not None:
        dots = yield from _damp(slot, names, dots, damped)
        sy, yy = dots[s, y], dots[y, y]
    if not sy > SLOPE_LEAST * yy:
        dots = {key: value for key, value in dots.items() if s not in key and y not in key}
        return replace(moved, pairs=kept, dots=dots, skipped=state.skipped + 1)
    return replace(moved, pairs=(*kept, slot), dots=dots)


def _damping(
    kept: tuple[int, ...], dots: Mapping[tuple[str, str], float], ss: float, sy: float
) -> tuple[float, float] | None:
    """Return (θ, 1/γ) of Powell's damping, y = θ y + (1 - θ) s / γ; None: the pair is good.

    With B ≈ I / γ, γ from the newest pair kept (1 without), s · y becomes `DAMPED` s · B s.
    """
    scale = 1 / _gamma(kept, dots) if kept else 1.0
    sbs = ss * scale
    if sy >= DAMPED * sbs:
        return None
    return (1 - DAMPED) * sbs / (sbs - sy), scale


def _damp(
    slot: int, names: tuple[str, ...], dots: Mapping[tuple[str, str], float],
    damped: tuple[float, float],
) -> Generator[Request, tuple[float, ...], dict[tuple[str, str], float]]:  # fmt: skip
    """Replace y by the damped one, and all products that it is in."""
    s, y = _pair(slot)
    theta, scale = damped
    others = (*names, s, y, G)
    found = yield Operate(
        (Combine(y, (theta, (1 - theta) * scale), (y, s)), *(Dot(y, name) for name in others))
    )
    keys = [(s, y) if name == s else (y, name) for name in others]
    return {**dots, **dict(zip(keys, found, strict=True))}


def direction(pairs: tuple[int, ...], dots: Mapping[tuple[str, str], float]) -> tuple[float, ...]:
    """Return the factors of -H g over the basis s, y of each pair (oldest first), then g.

    The two-loop recursion, with each of its vectors held as factors over the basis.
    """
    names = (*_names(pairs), G)
    factors = dict.fromkeys(names, 0.0)
    factors[G] = -1.0

    def product(name: str) -> float:
        return sum(f * _of(dots, name, other) for other, f in factors.items() if f)

    first: dict[int, float] = {}
    for slot in reversed(pairs):
        s, y = _pair(slot)
        first[slot] = product(s) / dots[s, y]
        factors[y] -= first[slot]
    if pairs:
        gamma = _gamma(pairs, dots)
        factors = {name: gamma * factor for name, factor in factors.items()}
    for slot in pairs:
        s, y = _pair(slot)
        factors[s] += first[slot] - product(y) / dots[s, y]
    return tuple(factors.values())


def _converged(limits: Limits, state: State, before: float | None = None) -> Result | None:
    if state.gradient <= limits.gradient:
        text = f"max |g| is {state.gradient:.3g}, at most {limits.gradient:g}"
        return Result("gradient", text, state)
    if before is not None:
        decrease = (before - state.loss) / max(abs(before), abs(state.loss), 1.0)
        if decrease <= limits.decrease:
            text = f"the loss fell by {decrease:.3g} of itself, at most {limits.decrease:g}"
            return Result("decrease", text, state)
    return None


def _spent(limits: Limits, state: State) -> Result | None:
    if state.iteration >= limits.iterations:
        return Result("iterations", f"{state.iteration} iterations are the limit", state)
    if state.evaluations >= limits.evaluations:
        return Result("evaluations", f"{state.evaluations} evaluations are the limit", state)
    return None


def _batch(limits: Limits, state: State) -> int:
    return state.iteration if limits.batches else 0


def _move(step: float) -> tuple[Operation, ...]:
    return Copy(TRIAL, X), Axpy(TRIAL, step, DIRECTION)


def _gamma(pairs: tuple[int, ...], dots: Mapping[tuple[str, str], float]) -> float:
    """Return s · y / y · y of the newest pair: the scale of the first Hessian."""
    s, y = _pair(pairs[-1])
    return dots[s, y] / dots[y, y]


def _pair(slot: int) -> tuple[str, str]:
    return f"lbfgs/s{slot}", f"lbfgs/y{slot}"


def _names(pairs: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(name for slot in pairs for name in _pair(slot))


def _free_slot(used: tuple[int, ...]) -> int:
    return next(slot for slot in range(len(used) + 1) if slot not in used)


def _of(dots: Mapping[tuple[str, str], float], a: str, b: str) -> float:
    return dots[a, b] if (a, b) in dots else dots[b, a]

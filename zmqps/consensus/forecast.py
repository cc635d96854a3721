"""What will come out, said before anything runs: errors after K rounds, rounds until `tol`.

For smooth functions, near the optimum x* (exact for quadratics): with Hessians H_i, gradients G_i
at x* and their means H̄, Ḡ = 0,

- the mean's distance is multiplied by Π_{k<K} (1 - α_k λ) along each eigenvector (λ) of H̄, whatever
  the graph;
- agent i settles at α_{K-1} w_i from the mean, w = -(I - A + 11ᵀ/m)⁻¹ (G - Ḡ), whatever α_0;
- unequal curvatures shift the mean along each eigenvector by α_{K-1} β / (1 - ρ/λ), where
  β = -H̄⁻¹ mean_i(H_i w_i), and ρ = 1/α_K - 1/α_{K-1} is how fast the steps fall. What they did to
  the mean before agents had settled is not known in closed form: the first rounds are computed.

For other functions there are only the bounds of the theory, and the forecast says so.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from zmqps.consensus.limits import AGREES, diverges
from zmqps.consensus.measures import measure
from zmqps.consensus.problem import Problem
from zmqps.consensus.recursion import Recursion
from zmqps.optim.graphs import components
from zmqps.optim.mixing import Array, Matrix, mix
from zmqps.optim.objectives import Quadratic
from zmqps.optim.sequence import Fixed
from zmqps.optim.spectral import DENSE_MAX, disagreement_bound, gap_bound
from zmqps.optim.steps import Decay

ROUNDS_MAX: Final = 1e18  # beyond, "more than" is all that is said
EXACT_ROUNDS: Final = 100_000  # products up to here are multiplied out, beyond they are integrated
BOUND_ROUNDS_MAX: Final = 2_000_000
CELLS_MAX: Final = 4_000_000  # of Hessians
AT_REST: Final = 1e-8
FIRST_ROUNDS: Final = 500  # that are computed where curvatures are unequal
RESONANCE: Final = 1e-6  # keeps 1 - ρ/λ from zero
SETTLED: Final = 10.0  # rounds times spectral gap, from which on the forecast is worth something


@dataclass(frozen=True, slots=True)
class Forecast:
    """What will come out. `basis` says how much it is worth; None is what cannot be said.

    reaches: whether `tol` is reached within max_iter rounds. rounds_for_tol: how many it would
    take; infinite if no number is enough.
    """

    basis: str
    rounds: int
    consensus_error: float | None
    mean_error: float | None
    worst_agent_error: float | None
    reaches: bool | None
    rounds_for_tol: float | None
    gap_bound: float | None
    words: str

    def as_json(self) -> dict[str, Any]:
        """Return plain values; an infinite number of rounds is the word."""
        found = asdict(self)
        if found["rounds_for_tol"] == float("inf"):
            found["rounds_for_tol"] = "infinite"
        return found


class Contraction:
    """log Π_{k<K} |1 - λ α_k| for any K, however large."""

    def __init__(self, decay: Decay, curvature: float) -> None:
        self._decay, self._curvature = decay, curvature
        exact = self._logs(np.arange(EXACT_ROUNDS, dtype=np.float64))
        self._exact = np.concatenate([[0.0], np.cumsum(exact)])
        self._points, self._weights = np.polynomial.legendre.leggauss(16)

    def __call__(self, rounds: float) -> float:
        """Return the logarithm; -inf where a factor is 0."""
        if rounds <= EXACT_ROUNDS:
            return float(self._exact[int(rounds)])
        # Σ_{a ≤ k < b} f(k) is about the integral from a - ½ to b - ½, taken over log k.
        ends = np.log([EXACT_ROUNDS - 0.5, rounds - 0.5])
        edges = np.linspace(ends[0], ends[1], 2 + int(2 * (ends[1] - ends[0])))
        half = np.diff(edges)[:, None] / 2
        at = np.exp(edges[:-1, None] + half * (1 + self._points))
        return float(self._exact[-1] + np.sum(self._logs(at) * at * self._weights * half))

    def _logs(self, ks: npt.NDArray[np.floating[Any]]) -> Array:
        with np.errstate(divide="ignore"):
            step = self._curvature * self._decay.values(ks)
            found: Array = np.where(
                step < 0.5, np.log1p(-np.minimum(step, 0.5)), np.log(np.abs(1 - step))
            )
        return found


class Smooth:
    """The forecast near the optimum, as the module's text has it."""

    def __init__(self, problem: Problem, optimum: Array, hessians: Array, matrix: Matrix) -> None:
        self._problem, self._optimum, self._matrix = problem, optimum, matrix
        scales = np.array([decay.value(0) for decay in problem.decays])
        scales /= scales.mean()  # unequal steps minimise Σ α_i f_i
        everywhere = np.broadcast_to(optimum, problem.start.shape)
        gradients = scales[:, None] * problem.objectives.subgradients(everywhere)
        self._hessians = scales[:, None, None] * hessians
        mean_hessian = self._hessians.mean(axis=0)
        self._shift = -np.linalg.solve(mean_hessian, gradients.mean(axis=0))
        self._gradients = gradients + self._hessians @ self._shift
        self._values, self._vectors = np.linalg.eigh(mean_hessian)
        self._inverse = np.linalg.inv(mean_hessian)
        distinct, self._which = np.unique(self._values, return_inverse=True)
        self._contractions = [Contraction(self._mean_decay, float(value)) for value in distinct]
        self._known = 0 if np.ptp(self._hessians, axis=0).max() == 0 else FIRST_ROUNDS
        recursion = Recursion(problem)
        for _ in range(self._known):
            recursion.step()
        start = self._vectors.T @ (recursion.x.mean(axis=0) - optimum - self._shift)
        self._left = start - self._lag(self._known)
        self._left_logs = self._logs(self._known)

    @cached_property
    def _mean_decay(self) -> Decay:
        """The rule of the mean step."""
        first = self._problem.decays[0]
        scales = [decay.names["alpha0"] for decay in self._problem.decays]
        return Decay(first.text, first.tree, {**first.names, "alpha0": float(np.mean(scales))})

    @cached_property
    def _settled(self) -> tuple[Array, Array]:
        """Return w and β; α H̄ is part of a constant step's w: exact for equal curvatures."""
        problem, m = self._problem, self._problem.agents
        constant = problem.settings.step_size.type == "constant"
        damping = self._values.mean() * self._mean_decay.value(0) if constant else 0.0
        mixed = problem.settings.place == "mixed"
        system = np.eye(m) - self._matrix.toarray() + 1 / m + damping * np.eye(m)
        if mixed and constant:  # (I - A + α h A) e = -α (G - Ḡ)
            system = np.eye(m) - (1 - damping) * self._matrix.toarray() + 1 / m
        centred = self._gradients - self._gradients.mean(axis=0)
        w = -np.linalg.solve(system, centred)
        at = mix(self._matrix, w) if mixed else w
        beta = -self._inverse @ np.einsum("mde,me->d", self._hessians, at) / m
        return w, beta

    def estimates(self, rounds: float) -> Array:
        """Return what the agents' estimates will be, about; at 0 rounds what they are."""
        if rounds < 1:
            return self._problem.start
        with np.errstate(invalid="ignore"):  # -inf from -inf: nothing is left
            decayed = np.exp(self._logs(rounds) - self._left_logs)
        along = np.nan_to_num(decayed) * self._left + self._lag(rounds)
        found: Array = self._optimum + self._shift + self._vectors @ along
        return found + self._alpha(rounds - 1) * self._settled[0]

    def _alpha(self, k: float) -> float:
        return float(self._mean_decay.values(np.array([k]))[0])

    def _logs(self, rounds: float) -> Array:
        """Return log Π |1 - α_k λ| for each eigenvector."""
        return np.array([one(rounds) for one in self._contractions])[self._which]

    def _lag(self, rounds: float) -> Array:
        """Return by how much unequal curvatures shift the mean, along each eigenvector."""
        if self._known == 0:
            return np.zeros(len(self._values))
        now, before = self._alpha(rounds), self._alpha(rounds - 1)
        if now <= 0 or before <= 0:  # too small for a number
            return np.zeros(len(self._values))
        slowing = 1 - (1 / now - 1 / before) / self._values
        slowing = np.where(np.abs(slowing) < RESONANCE, RESONANCE, slowing)
        found: Array = before * (self._vectors.T @ self._settled[1]) / slowing
        return found

    def worst(self, rounds: float) -> float:
        """Return the worst agent's error."""
        away = np.linalg.norm(self.estimates(rounds) - self._optimum, axis=1)
        return float(away.max())

    def rounds_for(self, tol: float) -> float:
        """Return after how many rounds the worst agent stays within `tol`; may be infinite."""
        if self.worst(ROUNDS_MAX) > tol:
            return float("inf")
        steps = np.unique(np.floor(np.geomspace(1, ROUNDS_MAX, 240)))
        above = [rounds for rounds in steps if self.worst(rounds) > tol]
        if not above:
            return 1.0
        low = above[-1]
        high = float(steps[np.searchsorted(steps, low) + 1])
        while high - low > max(1.0, 1e-6 * high):
            middle = np.floor((low + high) / 2)
            low, high = (middle, high) if self.worst(middle) > tol else (low, middle)
        return float(high)


def smooth_model(problem: Problem) -> Smooth | None:
    """Return the forecast near the optimum; None where its conditions do not hold."""
    optimum = problem.optimum
    small = problem.agents * problem.objectives.dimension**2 <= CELLS_MAX
    if optimum is None or not isinstance(problem.mixing, Fixed) or not small:
        return None
    if problem.agents > DENSE_MAX or problem.settings.losses is not None:
        return None
    if (problem.mixing.contraction() or 0.0) >= 1 - AGREES or diverges(problem):
        return None
    hessians = problem.objectives.hessians(optimum)
    if hessians is None or np.linalg.eigvalsh(hessians.mean(axis=0))[0] <= 0:
        return None
    everywhere = np.broadcast_to(optimum, problem.start.shape)
    gradients = problem.objectives.subgradients(everywhere)
    scale = 1 + float(np.abs(gradients).max())
    if np.abs(gradients.mean(axis=0)).max() > AT_REST * scale:
        return None  # the optimum is on the border of the set
    return Smooth(problem, optimum, hessians, problem.mixing.matrix(0))


@dataclass(frozen=True)
class Bounds:
    """What the theory promises, from the spectral gap: see spectral.disagreement_bound, gap_bound.

    `slope` is L. Where subgradients are not bounded it is the longest at the start and at the
    optimum, and the bounds hold as long as no longer one comes.
    """

    slope: float
    proved: bool
    disagreement: Array  # for k = 0 .. rounds
    gap: Array | None  # for k = 1 .. rounds; None where the optimum is not known


def bounds(problem: Problem, rounds: int) -> Bounds | None:
    """Return the bounds over these rounds; None if σ is unknown, not exact, or for too many."""
    sigma = problem.mixing.contraction()
    if sigma is None or not problem.objectives.exact or rounds > BOUND_ROUNDS_MAX:
        return None
    slope = problem.objectives.slope()
    proved = slope is not None
    if slope is None:
        points = [problem.start]
        if problem.optimum is not None:
            points.append(np.broadcast_to(problem.optimum, problem.start.shape))
        lengths = [
            np.linalg.norm(problem.objectives.subgradients(point), axis=1).max() for point in points
        ]
        slope = float(max(lengths))
    ks = np.arange(rounds) * 1.0
    alphas = problem.decays[0].values(ks)
    if not problem.equal_steps:
        alphas = np.max([decay.values(ks) for decay in problem.decays], axis=0)
    start = measure(problem, problem.start, 0)
    period = problem.mixing.period or 1
    apart = disagreement_bound(alphas, sigma, start.disagreement, problem.agents, slope, period)
    gap = None
    if start.mean_error is not None and problem.equal_steps and problem.settings.place == "local":
        gap = gap_bound(alphas, apart, problem.agents, slope, start.mean_error)
    return Bounds(slope, proved, apart, gap)


def forecast(problem: Problem) -> Forecast:
    """Say what will come out."""
    end = problem.settings.consensus
    found = bounds(problem, end.max_iter)
    gap = None if found is None or found.gap is None else float(found.gap[-1])
    if not _positive(problem):
        words = "nothing can be said of steps that are not all above 0"
        nothing = (None, None, None)
        return Forecast("step size", end.max_iter, *nothing, None, None, None, words)
    words = diverges(problem)
    if words:
        nothing = (None, None, None)
        return Forecast("stability", end.max_iter, *nothing, False, float("inf"), None, words)
    model = smooth_model(problem)
    if model is None:
        return _bound_only(problem, found, gap)
    errors = measure(problem, model.estimates(end.max_iter), end.max_iter)
    needed = None if end.tol is None else model.rounds_for(end.tol)
    constant = problem.settings.step_size.type == "constant"
    basis = "exact in the limit" if _equal_curvatures(problem) else "near the optimum"
    if end.max_iter * (1 - (problem.mixing.contraction() or 0.0)) < SETTLED:
        basis += ", but so few rounds are too early for it"
    return Forecast(
        basis=basis,
        rounds=end.max_iter,
        consensus_error=errors.consensus_error,
        mean_error=errors.mean_error,
        worst_agent_error=errors.worst_agent_error,
        reaches=None if needed is None else needed <= end.max_iter,
        rounds_for_tol=needed,
        gap_bound=gap,
        words=_verdict(end.tol, needed, end.max_iter, model.worst(ROUNDS_MAX), constant),
    )


def _positive(problem: Problem) -> bool:
    ks = np.arange(min(problem.settings.consensus.max_iter, BOUND_ROUNDS_MAX)) * 1.0
    return all(bool(np.all(decay.values(ks) > 0)) for decay in problem.decays[:1])


def _equal_curvatures(problem: Problem) -> bool:
    hessians = problem.objectives.hessians(problem.start.mean(axis=0))
    return hessians is not None and bool(np.ptp(hessians, axis=0).max() == 0)


def _verdict(
    tol: float | None, needed: float | None, rounds: int, floor: float, constant: bool
) -> str:
    if tol is None or needed is None:
        return "no tol is asked for"
    if needed == float("inf") and constant:
        return f"tol {tol:g} is never reached: the worst agent settles at {floor:.3g}"
    if needed == float("inf"):
        return f"tol {tol:g} is not reached, not even in {ROUNDS_MAX:g} rounds"
    if needed > rounds:
        return f"tol {tol:g} is not reached in {rounds:,} rounds: it takes about {needed:.3g}"
    return f"tol {tol:g} is reached after about {needed:,.0f} rounds"


def _bound_only(problem: Problem, found: Bounds | None, gap: float | None) -> Forecast:
    """Return what the bounds allow to say, and the mean's error where it is blind to the graph."""
    end = problem.settings.consensus
    apart = None if found is None else float(found.disagreement[-1])
    mean = mean_error(problem, end.max_iter)
    sigma = problem.mixing.contraction() or 0.0
    never = problem.mixing.period == 1 and sigma >= 1 - AGREES
    late = mean is not None and end.tol is not None and mean > end.tol
    if never:
        parted = len(components(problem.mixing.base)) > 1
        why = "the graph is not connected" if parted else f"σ is {sigma:g}: rounds do not mix"
        words = f"agents never agree, as {why}: no tol is reached"
    elif late:
        words = f"tol {end.tol:g} is not reached: the mean alone is farther away by then"
    else:
        words = "functions, graph or sets allow no forecast of the worst agent's distance"
    if gap is not None and not never:
        rounds = f"{end.max_iter:,} rounds"
        words += f"; objective gap of the averaged mean at most {gap:.3g} after {rounds}"
    return Forecast(
        basis="bound" if found is not None and found.proved else "bound, while subgradients last",
        rounds=end.max_iter,
        consensus_error=None if never else apart,
        mean_error=mean,
        worst_agent_error=None,
        reaches=False if never or late else None,
        rounds_for_tol=float("inf") if never else None,
        gap_bound=gap,
        words=words,
    )


def mean_error(problem: Problem, rounds: int) -> float | None:
    """Return ‖x̄ - x*‖ after some rounds of functions of one curvature, whatever the graph.

    ‖x̄(0) - x*‖ Π |1 - c α_k|; None where functions, steps or sets are not such, or where lost
    messages disturb the mean.
    """
    start = measure(problem, problem.start, 0).mean_error
    hessians = problem.objectives.hessians(problem.start.mean(axis=0))
    sound = problem.equal_steps and not problem.sets and problem.settings.losses is None
    quadratic = isinstance(problem.objectives, Quadratic)
    if start is None or hessians is None or not (sound and quadratic):
        return None
    curvatures = np.unique(hessians[:, 0, 0])
    if curvatures.size > 1:
        return None
    return float(start * np.exp(Contraction(problem.decays[0], float(curvatures[0]))(rounds)))

"""Every assumption of the theory with its value, and the forecast: all before anything runs."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from zmqps.consensus.diagnosis import wrong_subgradient
from zmqps.consensus.forecast import Forecast, forecast
from zmqps.consensus.limits import AGREES, largest_curvature, stable_step
from zmqps.consensus.measures import plain
from zmqps.consensus.problem import STEPS_LOOKED_AT, Problem, refusals
from zmqps.optim import mixing, spectral
from zmqps.optim.graphs import components
from zmqps.optim.sequence import FailingLinks, Fixed
from zmqps.optim.steps import Conditions, conditions

Status = Literal["holds", "warning", "fails"]


@dataclass(frozen=True, slots=True)
class Finding:
    """An assumption or a fact: its value, and whether it is as it should be."""

    name: str
    status: Status
    value: Any
    words: str


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, and the forecast."""

    findings: tuple[Finding, ...]
    forecast: Forecast

    @property
    def runs(self) -> bool:
        """Tell whether nothing fails."""
        return all(finding.status != "fails" for finding in self.findings)

    def finding(self, name: str) -> Finding:
        """Return a finding by its name. Raises KeyError."""
        for one in self.findings:
            if one.name == name:
                return one
        raise KeyError(name)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        found = {
            "runs": self.runs,
            "findings": [asdict(finding) for finding in self.findings],
            "forecast": self.forecast.as_json(),
        }
        return {name: plain(one) for name, one in found.items()}

    def __str__(self) -> str:
        """Return lines for people."""
        marks = {"holds": "ok", "warning": "!!", "fails": "NO"}
        lines = [f"{marks[one.status]}  {one.name:24} {one.words}" for one in self.findings]
        told = self.forecast
        errors = {
            "worst agent error": told.worst_agent_error,
            "mean error": told.mean_error,
            "consensus error": told.consensus_error,
        }
        known = ", ".join(f"{name} {x:.4g}" for name, x in errors.items() if x is not None)
        lines += ["", f"forecast ({told.basis}): {told.words}"]
        return "\n".join([*lines, *([f"  after {told.rounds:,} rounds: {known}"] if known else [])])


def check(problem: Problem) -> Report:
    """Look at everything. Nothing runs, nothing is repaired."""
    parts: list[Callable[[Problem], list[Finding]]] = [
        _sums, _weights, _connectivity, _contraction, _steps, _stability, _functions, _sets,
        _losses, _refused,
    ]  # fmt: skip
    with np.errstate(all="ignore"):  # what is too large or undefined is told
        findings = [finding for part in parts for finding in part(problem)]
        return Report(tuple(findings), forecast(problem))


def _sums(problem: Problem) -> list[Finding]:
    found = []
    for word, sums_of in (("row", mixing.row_sums), ("column", mixing.column_sums)):
        sums = np.concatenate([sums_of(matrix) for matrix in problem.mixing.matrices])
        worst = int(np.argmax(np.abs(sums - 1)))
        number, agent = divmod(worst, problem.agents)
        holds = bool(abs(sums[worst] - 1) <= mixing.TOLERANCE)
        value = {"least": float(sums.min()), "largest": float(sums.max())}
        words = "all 1" if holds else f"{word} {agent} sums to {sums[worst]:.6g}, not 1"
        if not holds and len(problem.mixing.matrices) > 1:
            words += f" (graph {number})"
        found.append(Finding(f"{word} sums", "holds" if holds else "fails", value, words))
    return found


def _weights(problem: Problem) -> list[Finding]:
    matrices = problem.mixing.matrices
    eta = min(mixing.smallest_positive(matrix) for matrix in matrices)
    diagonal = np.concatenate([matrix.diagonal() for matrix in matrices])
    below = [entry for matrix in matrices for entry in mixing.negative(matrix)]
    rule = problem.settings.weight_rule.rule
    note = ""
    if rule == "max_degree":
        note = f" (1/(1 + d_max), d_max = {round(1 / eta) - 1})" if below == [] else ""
    least = float(diagonal.min())
    words = (
        f"at least {least:.4g}" if least > 0 else f"agent {int(np.argmin(diagonal))}: {least:.4g}"
    )
    found = [
        Finding("smallest positive weight", "holds", eta, f"{eta:.6g}, {rule}{note}"),
        Finding("self-weights", "holds" if least > 0 else "warning", least, words),
    ]
    if below:
        i, j, weight = below[0]
        what = f"agent {i} for itself" if i == j else f"agent {i} for {j}"
        words = f"{len(below)}, such as {weight:.4g} of {what}: outside the papers' assumptions"
        found.append(Finding("negative weights", "warning", weight, words))
    return found


def _connectivity(problem: Problem) -> list[Finding]:
    parts = components(problem.mixing.base)
    if len(parts) > 1:
        words = f"{len(parts)} parts that never hear each other: {_listed(parts)}"
        return [Finding("connected", "warning", None, words)]
    window = problem.mixing.window(problem.settings.consensus.max_iter)
    if window is None:
        return [Finding("connected", "warning", None, "not within any window of rounds looked at")]
    seen = "" if problem.mixing.period else " (over the first rounds of this seed)"
    words = "in every round" if window == 1 else f"over any {window} rounds on end{seen}"
    eta = min(mixing.smallest_positive(matrix) for matrix in problem.mixing.matrices)
    c1 = spectral.paper_constant(problem.agents, eta, window)
    vacuous = f"C1 {c1:.3g} ([N] Prop. 3): vacuous in practice; go by σ"
    return [
        Finding("connected", "holds", window, words),
        Finding("the paper's constant", "holds", c1, vacuous),
    ]


def _listed(parts: list[list[int]]) -> str:
    shown = [", ".join(map(str, part[:6])) + (", …" if len(part) > 6 else "") for part in parts[:4]]
    return " | ".join(shown) + (" | …" if len(parts) > 4 else "")


def _contraction(problem: Problem) -> list[Finding]:
    sequence = problem.mixing
    sigma = sequence.contraction()
    if sigma is None:
        return [Finding("contraction", "warning", None, "σ was not computed for so many agents")]
    period = f" (averaged over a period of {sequence.period} rounds)" if sequence.period else ""
    how = "" if sequence.period == 1 else period or " on average"
    agrees = sigma < 1 - AGREES
    value = {"sigma": sigma, "gap": 1 - sigma}
    words = f"σ {sigma:.6g}, gap {1 - sigma:.4g}: a round leaves {sigma:.2%} of disagreement{how}"
    found = [Finding("contraction", "holds" if agrees else "warning", value, words)]
    if isinstance(sequence, Fixed):
        modulus = spectral.second_modulus(sequence.matrix(0))
        if modulus is not None and abs(modulus - sigma) > 1e-9:
            words = f"{modulus:.6g}: less than σ, as the matrix is not symmetric"
            found.append(Finding("second eigenvalue", "holds", modulus, words))
    return found


def _steps(problem: Problem) -> list[Finding]:
    settings = problem.settings.step_size
    decay = problem.decays[0]
    decided = conditions(decay.growth())
    if settings.type == "constant":
        scale = max(one.value(0) for one in problem.decays)
        words = f"constant {scale:g}: ends in a neighbourhood of the optimum, as large as the step"
        found = [Finding("step size", "warning", asdict(decided), words)]
    else:
        found = [_diminishing(decay.text, decided)]
    if settings.condition is not None:
        found += _believed(settings.condition, decided)
    if not problem.equal_steps:
        words = "agents minimise Σ α_i f_i, not Σ f_i"
        values = list(settings.alphas or ())
        found.append(Finding("unequal steps", "warning", values, words))
    ks = np.arange(min(problem.settings.consensus.max_iter, STEPS_LOOKED_AT)) * 1.0
    bad = np.flatnonzero(~(decay.values(ks) > 0) | np.isinf(decay.values(ks)))
    if bad.size:
        k = int(bad[0])
        words = f"{decay.text} is not above 0 in round {k}"
        zero = bool(np.all(decay.values(ks) >= 0) and np.all(np.isfinite(decay.values(ks))))
        found.append(Finding("positive steps", "warning" if zero else "fails", k, words))
    return found


def _diminishing(text: str, decided: Conditions) -> Finding:
    sums = (decided.sum_infinite, decided.squares_finite)
    told = {True: "yes", False: "NO", None: "not decided"}
    words = f"{text}: Σ α_k = ∞ {told[sums[0]]}, Σ α_k² < ∞ {told[sums[1]]}"
    if sums == (True, False) and decided.vanishes:
        words += "; α_k → 0, so that the best objective still converges"
    return Finding(
        "step size", "holds" if sums == (True, True) else "warning", asdict(decided), words
    )


def _believed(text: str, decided: Conditions) -> list[Finding]:
    """Compare what the file says with what was decided."""
    plain = text.replace(" ", "").replace("∞", "inf").lower()
    claims = {
        "Σ α_k = ∞": ("sum(alpha_k)=inf" in plain, decided.sum_infinite),
        "Σ α_k² < ∞": ("sum(alpha_k^2)<inf" in plain, decided.squares_finite),
    }
    wrong = [claim for claim, (said, true) in claims.items() if said and true is not True]
    if wrong:
        words = f"the file claims {' and '.join(wrong)}, which does not follow from its decay rule"
        return [Finding("condition", "warning", text, words)]
    known = any(said for said, _ in claims.values())
    words = "as claimed" if known else "not understood; decided from the decay rule instead"
    return [Finding("condition", "holds", text, words)]


def _refused(problem: Problem) -> list[Finding]:
    """Tell what is refused for other reasons than sums and steps, which are told above."""
    told = ("weight_rule", "step_size.decay")
    return [
        Finding(error.place, "fails", None, error.message)
        for error in refusals(problem)
        if error.place not in told
    ]


def _stability(problem: Problem) -> list[Finding]:
    limit = stable_step(problem)
    if limit is None:
        return [Finding("stability", "warning", None, "the largest stable step is not known")]
    if limit == float("inf"):
        return [Finding("stability", "holds", "infinite", "no curvature: any step is stable")]
    alpha = max(decay.value(0) for decay in problem.decays)
    constant = problem.settings.step_size.type == "constant"
    curvature = largest_curvature(problem)
    if limit <= 0:
        words = "no step is stable: λ_min(A) is below -1, a round alone makes disagreement grow"
        return [Finding("stability", "warning", limit, words)]
    formula = "2" if problem.settings.place == "mixed" else "(1 + λ_min)"
    words = f"α below {limit:.4g} = {formula} / h, largest curvature h = {curvature:.4g}"
    if alpha < limit:
        return [Finding("stability", "holds", limit, words)]
    what = "diverges" if constant else "first rounds go astray, until α_k is below it"
    return [Finding("stability", "warning", limit, f"{words}; α_0 = {alpha:g}: {what}")]


def _functions(problem: Problem) -> list[Finding]:
    slope = problem.objectives.slope()
    if not problem.objectives.exact:
        words = "a model and its mini-batches: not convex, gradients drawn: nothing is proved"
        return [Finding("convex functions", "warning", None, words)]
    wrong = wrong_subgradient(problem)
    words = wrong or "agree with finite differences at the start"
    found = [Finding("subgradients", "warning" if wrong else "holds", None, words)]
    if slope is not None:
        words = f"none longer than L = {slope:.4g}"
        return [*found, Finding("bounded subgradients", "holds", slope, words)]
    words = "not bounded (as of any quadratic): outside the papers' assumptions, works in practice"
    return [*found, Finding("bounded subgradients", "warning", None, words)]


def _sets(problem: Problem) -> list[Finding]:
    settings = problem.settings
    default = "local" if settings.algorithm == "subgradient" else "mixed"
    paper = "as in the paper" if settings.place == default else f"the paper takes {default}"
    status: Status = "holds" if settings.place == default else "warning"
    found = [Finding("subgradient taken at", status, settings.place, f"{settings.place}: {paper}")]
    if len(problem.sets) > 1:
        weights = np.concatenate([matrix.toarray().ravel() for matrix in problem.mixing.matrices])
        uniform = bool(np.ptp(weights) <= mixing.TOLERANCE)
        words = "one for each agent; proved for equal weights (1/m) only"
        found.append(
            Finding("different sets", "holds" if uniform else "warning", len(problem.sets), words)
        )
    return found


def _losses(problem: Problem) -> list[Finding]:
    settings = problem.settings
    if settings.losses is None and settings.rounds.on_missing == "wait":
        return []
    on_missing = settings.rounds.on_missing
    if on_missing == "wait":
        words = "wait: a lost message is waited for and changes nothing"
        return [Finding("lost messages", "holds", on_missing, words)]
    if on_missing == "last_value":
        words = "last_value: the neighbour's last estimate takes its weight; it delays convergence"
        return [Finding("lost messages", "holds", on_missing, words)]
    both = settings.losses is not None and settings.losses.direction == "both"
    symmetric = all(mixing.is_symmetric(matrix) for matrix in problem.mixing.matrices)
    if (both and symmetric) or isinstance(problem.mixing, FailingLinks):
        words = "self_weight: stays doubly stochastic, as links fail in both directions at once"
        return [Finding("lost messages", "holds", on_missing, words)]
    words = (
        "self_weight: does not stay doubly stochastic unless links fail in both directions at once "
        "and weights are symmetric; the mean is off"
    )
    return [Finding("lost messages", "warning", on_missing, words)]

"""What a mixing matrix does to disagreement: its spectral gap, and the paper's own constants."""

from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.sparse import linalg as sparse_linalg

from zmqps.optim.mixing import Array, Matrix, is_symmetric

DENSE_MAX: Final = 800  # agents up to which all eigenvalues are computed: about 0.2 s
RESTARTS_MAX: Final = 100  # of the iteration beyond: about 2 s for 20,000 agents


def second_modulus(matrix: Matrix) -> float | None:
    """Return σ, the largest modulus of an eigenvalue of A - 11ᵀ/m; the spectral gap is 1 - σ.

    For a doubly stochastic A these are A's eigenvalues without the 1 of agreement. None if there
    are too many agents for the iteration to converge.
    """
    agents = matrix.shape[0]
    if agents == 1:
        return 0.0
    if agents > DENSE_MAX:
        return _largest(matrix)
    rest = matrix.toarray() - 1 / agents
    values: npt.NDArray[np.complex128] | Array
    values = np.linalg.eigvalsh(rest) if is_symmetric(matrix) else np.linalg.eigvals(rest)
    return float(np.abs(values).max())


def contraction(matrix: Matrix) -> float | None:
    """Return ‖A - 11ᵀ/m‖₂: a round multiplies ‖X - 1x̄‖_F by at most this.

    The same as σ for a symmetric matrix, at least σ for any other.
    """
    agents = matrix.shape[0]
    if is_symmetric(matrix):
        return second_modulus(matrix)
    if agents > DENSE_MAX:
        return _largest(matrix, squared=True)
    return float(np.linalg.norm(matrix.toarray() - 1 / agents, 2))


def smallest_eigenvalue(matrix: Matrix) -> float | None:
    """Return λ_min of a symmetric matrix; None if it is not symmetric, or too large."""
    if not is_symmetric(matrix) or matrix.shape[0] > DENSE_MAX:
        return None
    return float(np.linalg.eigvalsh(matrix.toarray())[0])


def _largest(matrix: Matrix, *, squared: bool = False) -> float | None:
    """Return the largest modulus of A - 11ᵀ/m by Lanczos' or Arnoldi's iteration.

    With `squared` its norm: the root of the largest eigenvalue of (A - 11ᵀ/m)ᵀ (A - 11ᵀ/m).
    """
    agents = matrix.shape[0]
    back = matrix.T.tocsr()

    def apply(x: Array) -> Array:
        y: Array = matrix @ (x - x.mean())
        y -= y.mean()
        if squared:
            y = back @ y
            y -= y.mean()
        return y

    operator = sparse_linalg.LinearOperator((agents, agents), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(agents)
    solve = sparse_linalg.eigsh if squared or is_symmetric(matrix) else sparse_linalg.eigs
    try:
        (value,) = solve(
            operator, 1, v0=start, tol=1e-6, maxiter=RESTARTS_MAX, return_eigenvectors=False
        )
    except sparse_linalg.ArpackNoConvergence:
        return None
    modulus = float(abs(value))
    return modulus**0.5 if squared else modulus


def paper_constant(agents: int, eta: float, window: int = 1) -> float:
    """Return C1 of [N] Proposition 3, with η the smallest weight and B the window.

    C1 = 1 + m / (1 - (1 - η^B0)^(1/B0)) · (1 + η^-B0) / (1 - η^B0), B0 = (m - 1) B. A constant step
    keeps every agent within 2 α L C1 of the mean. It is vacuous in practice (1.3e5 for a ring of
    five): the bound that is of use comes from the spectral gap.
    """
    b0 = (agents - 1) * window
    if agents == 1 or eta >= 1:
        return 1.0
    log_power = b0 * np.log(eta)
    with np.errstate(over="ignore", divide="ignore"):
        power = np.exp(log_power)
        gap = -np.expm1(np.log1p(-power) / b0)
        return float(1 + agents / gap * (1 + np.exp(-log_power)) / (1 - power))


def disagreement_bound(
    alphas: Array, sigma: float, start: float, agents: int, slope: float, period: int = 1
) -> Array:
    """Return a bound on ‖X(k) - 1x̄(k)‖_F for k = 0 .. len(alphas).

    It is σ^k ‖E_0‖_F + Σ_s σ^(k-1-s) α_s √m L, for subgradients no longer than L (`slope`). Where
    matrices come in a cycle, only a whole period contracts for sure, by σ^period; a round within
    it adds α_s √m L.
    """
    bound = np.empty(len(alphas) + 1)
    bound[0] = start
    whole = sigma**period
    for k, added in enumerate(alphas * (agents**0.5 * slope), 1):
        if k % period:
            bound[k] = bound[k - 1] + added
        else:
            within = bound[k - 1] - bound[k - period] + added
            bound[k] = whole * bound[k - period] + within
    return bound


def gap_bound(alphas: Array, disagreement: Array, agents: int, slope: float, start: float) -> Array:
    """Return a bound on f(ŷ(K)) - f* for K = 1 .. len(alphas); f is the sum over the agents.

    ŷ(K) is the mean estimate averaged over rounds with the weights α_k, `start` is ‖x̄(0) - x*‖,
    `disagreement` bounds ‖X(k) - 1x̄(k)‖_F. From [N] Lemma 5, summed over the rounds:
    (m R²/2 + m L²/2 Σ α_k² + 2 L √m Σ α_k ‖E(k)‖_F) / Σ α_k.
    """
    above = (
        agents * start**2 / 2
        + agents * slope**2 / 2 * np.cumsum(alphas**2)
        + 2 * slope * agents**0.5 * np.cumsum(alphas * disagreement[: len(alphas)])
    )
    bound: Array = above / np.cumsum(alphas)
    return bound

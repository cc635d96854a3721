"""First values of a block: the same on any number of shards, machine and release.

Two things could make them differ, and neither is used. NumPy may change its distributions between
releases (NEP 19), so only the raw 64-bit words of its Philox 4x64-10 generator are taken, whose
stream is fixed. And log, sin and cos differ in the last bits between processors and libraries, so
they are built here from +, -, ×, ÷ and sqrt, which IEEE 754 rounds in one way only (each is a
NumPy operation of its own, so none is fused with the next).
"""

import math

import numpy as np
from numpy.typing import NDArray

from zmqps.protocol.errors import LocalError
from zmqps.protocol.keys import Block

Values = NDArray[np.float32] | NDArray[np.float64]
Floats = NDArray[np.float64]

# Elements made at a time: the temporaries stay in the second-level cache.
CHUNK = 1 << 14
LN_2 = 0.6931471805599453
# ln m = 2 s (1 + s²/3 + s⁴/5 + ...), s = (m - 1)/(m + 1); for m in [√½, √2) the rest is < 1e-14.
LOG_SERIES = [1 / (2 * k + 1) for k in range(9)]
# sin φ = φ (1 - φ²/3! + φ⁴/5! - ...); for |φ| <= π/4 the rest is < 1e-16.
SIN_SERIES = [(-1) ** k / math.factorial(2 * k + 1) for k in range(8)]


def initial_values(block: Block, seed: int) -> Values:
    """Return a block's first values, which depend on nothing but the block and the seed.

    Element i of the flattened block follows from the words of Philox with key (seed, block.key)
    and counter 0. `uniform`: word i (see `_uniform`). `normal`: the words of the pair 2⌊i/2⌋ (see
    `_normal`). Both are computed in float64, times the scale, then rounded to the block's dtype:
    in float32 a uniform value may be +scale itself (once in 2^25). Raises LocalError for `given`,
    whose values a client sends, and for a seed outside [0, 2^64).
    """
    if not 0 <= seed < 1 << 64:
        raise LocalError(f"seed {seed}, must be in 0 to 2^64 - 1")
    kind, scale = block.initial.kind, block.initial.scale
    if kind == "given":
        raise LocalError(f"tensor {block.tensor!r}: its first values are given by a client")
    values: Values = np.full(block.shape, scale, block.dtype)
    if kind == "constant":
        return values
    draw = _normal if kind == "normal" else _uniform
    bits = np.random.Philox(key=np.array([seed, block.key], np.uint64))
    flat = values.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        # An even number of words: the normals need pairs.
        drawn = draw(bits.random_raw(part.size + part.size % 2))
        np.multiply(drawn[: part.size], scale, out=part, casting="same_kind")
    return values


def _uniform(words: NDArray[np.uint64]) -> Floats:
    """Return 2u - 1, uniform on [-1, 1), with u = ⌊word / 2^11⌋ / 2^53."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1


def _normal(words: NDArray[np.uint64]) -> Floats:
    """Return standard normal values, two from each two words (Box and Muller, 1958).

    With u = (⌊word a / 2^11⌋ + 1) / 2^53 on (0, 1], φ = π/4 times the uniform value of word b on
    [-1, 1), and the sign -1 where word a is odd: ±√(-2 ln u) sin 2φ and ±√(-2 ln u) cos 2φ. The
    angle 2φ covers half a turn, the sign the other half.
    """
    a, b = words[0::2], words[1::2]
    radius = np.sqrt(-2 * _log(((a >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53))
    radius *= 1 - 2 * (a & np.uint64(1)).astype(np.float64)
    sine = _sin(_uniform(b) * (math.pi / 4))
    square = sine * sine
    values = np.empty(words.size)
    values[0::2] = radius * (2 * sine * np.sqrt(1 - square))  # sin 2φ = 2 sin φ cos φ
    values[1::2] = radius * (1 - 2 * square)  # cos 2φ
    return values


def _log(x: Floats) -> Floats:
    """Return ln x of positive numbers, as exponent · ln 2 + ln m with m in [√½, √2)."""
    m, exponent = np.frexp(x)
    low = m < math.sqrt(0.5)
    m += m * low
    s = (m - 1) / (m + 1)
    result: Floats = (exponent - low) * LN_2 + 2 * s * _series(s * s, LOG_SERIES)
    return result


def _sin(angle: Floats) -> Floats:
    """Return sin of angles in [-π/4, π/4]."""
    return angle * _series(angle * angle, SIN_SERIES)


def _series(x: Floats, coefficients: list[float]) -> Floats:
    """Return c0 + c1 x + c2 x² + ... by Horner's rule."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total *= x
        total += coefficient
    return total

"""Step sizes α_k, k = 0, 1, …, from text such as `alpha0 / (k + 1)`, and what becomes of them.

The text is parsed into a tree of a few operations and never run as code. The same tree yields
values and growth: how α_k behaves for large k, by which Σ α_k and Σ α_k² are decided.
"""

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from zmqps.optim.mixing import Array

TEXT_MAX: Final = 200
DEPTH_MAX: Final = 40
CLOSE: Final = 1e-12  # exponents nearer than this are equal: 0.1 + 0.2 against 0.3
ALLOWED: Final = "allowed: numbers, k, alpha0, p, + - * / ^, sqrt(...), log(...), parentheses"


class StepError(ValueError):
    """A step size that cannot be used: what was written, and what is allowed."""


class Growth(NamedTuple):
    """About c · r^k · k^power · log(k)^logs for large k; c = 0 is the constant zero."""

    c: float
    r: float = 1.0
    power: float = 0.0
    logs: float = 0.0

    @property
    def order(self) -> tuple[float, float, float]:
        """What decides which of two is larger in the end."""
        return round(self.r, 12), round(self.power, 12), round(self.logs, 12)


@dataclass(frozen=True)
class Decay:
    """A decay rule: its text and its tree."""

    text: str
    tree: ast.expr
    names: Mapping[str, float]

    def value(self, k: float) -> float:
        """Return α_k. Raises StepError where it is not a finite number."""
        try:
            found = float(_value(self.tree, {**self.names, "k": float(k)}))
        except (ArithmeticError, ValueError, TypeError):  # TypeError: a root of less than zero
            found = math.nan
        if not math.isfinite(found):
            raise StepError(f"decay {self.text!r}: is no finite number at k = {k:g}")
        return found

    def values(self, ks: npt.NDArray[np.floating[Any]]) -> Array:
        """Return α_k for many k at once; not finite where it has no value."""
        with np.errstate(all="ignore"):
            found = _value(self.tree, {**self.names, "k": np.asarray(ks, np.float64)})
        return np.broadcast_to(np.asarray(found, np.float64), ks.shape)

    def growth(self) -> Growth | None:
        """Return how α_k behaves for large k; None if this module cannot tell."""
        return _growth(self.tree, self.names)


def parse_decay(text: str, names: Mapping[str, float]) -> Decay:
    """Read a decay rule. `names` holds what may stand in it beside k: alpha0, p.

    Raises StepError for whatever is not an expression of the few allowed things.
    """
    if len(text) > TEXT_MAX:
        raise StepError(f"decay: is longer than {TEXT_MAX} characters")
    try:
        tree = ast.parse(text.replace("^", "**").strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise StepError(f"decay {text!r}: is no expression; {ALLOWED}") from None
    _check(tree, text, {*names, "k"}, 0)
    return Decay(text, tree, dict(names))


Value = float | Array
_OPERATIONS: Final[Mapping[type[ast.operator], Callable[[Value, Value], Value]]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}
_FUNCTIONS: Final = {"sqrt": (math.sqrt, np.sqrt), "log": (math.log, np.log)}


def _check(tree: ast.expr, text: str, names: set[str], depth: int) -> None:
    match tree:
        case _ if depth > DEPTH_MAX:
            raise StepError(f"decay {text!r}: is nested too deep")
        case ast.Constant(value=bool() | complex()):
            pass
        case ast.Constant(value=int() | float() as number) if abs(number) < 1e100:
            return None
        case ast.Name(id=name):
            if name in names:
                return None
            missing = {"p": "the setting p is missing", "alpha0": "alpha0 is missing"}.get(name)
            raise StepError(f"decay {text!r}: {missing or f'{name} is unknown; {ALLOWED}'}")
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=inner):
            return _check(inner, text, names, depth + 1)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            _check(left, text, names, depth + 1)
            return _check(right, text, names, depth + 1)
        case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _FUNCTIONS:
            return _check(inner, text, names, depth + 1)
    raise StepError(f"decay {text!r}: {ast.unparse(tree)[:60]!r} may not stand there; {ALLOWED}")


def _value(tree: ast.expr, names: Mapping[str, Value]) -> Value:
    match tree:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(op=sign, operand=inner):
            value = _value(inner, names)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=operation, right=right):
            return _OPERATIONS[type(operation)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=[inner]):
            of_one, of_many = _FUNCTIONS[name]
            value = _value(inner, names)
            return of_many(value) if isinstance(value, np.ndarray) else of_one(value)
    raise TypeError(f"no value for {tree!r}")


def _growth(tree: ast.expr, names: Mapping[str, float]) -> Growth | None:
    match tree:
        case ast.Constant(value=int() | float() as number):
            return Growth(float(number))
        case ast.Name(id="k"):
            return Growth(1.0, power=1.0)
        case ast.Name(id=name):
            return Growth(names[name])
        case ast.UnaryOp(op=sign, operand=inner):
            found = _growth(inner, names)
            flip = -1.0 if isinstance(sign, ast.USub) else 1.0
            return found and found._replace(c=flip * found.c)
        case ast.Call(func=ast.Name(id=name), args=[inner]):
            found = _growth(inner, names)
            if found is None or found.c <= 0:
                return None
            return _power(found, 0.5) if name == "sqrt" else _log(found)
        case ast.BinOp(left=left, op=operation, right=right):
            a, b = _growth(left, names), _growth(right, names)
            return a and b and _combined(a, operation, b)
    return None


def _combined(a: Growth, operation: ast.operator, b: Growth) -> Growth | None:
    match operation:
        case ast.Add():
            return _sum(a, b)
        case ast.Sub():
            return _sum(a, b._replace(c=-b.c))
        case ast.Mult():
            return _product(a, b)
        case ast.Div():
            inverse = _power(b, -1.0)
            return inverse and _product(a, inverse)
    return _raised(a, b)


def _sum(a: Growth, b: Growth) -> Growth | None:
    if a.c == 0 or b.c == 0:
        return b if a.c == 0 else a
    if a.order != b.order:
        return max(a, b, key=lambda one: one.order)
    c = a.c + b.c
    return a._replace(c=c) if abs(c) > CLOSE * abs(a.c) else None  # the next terms would decide


def _product(a: Growth, b: Growth) -> Growth:
    if a.c == 0 or b.c == 0:
        return Growth(0.0)
    return Growth(a.c * b.c, a.r * b.r, a.power + b.power, a.logs + b.logs)


def _power(a: Growth, exponent: float) -> Growth | None:
    if a.c == 0 or (a.c < 0 and exponent != int(exponent)):
        return None
    try:
        return Growth(a.c**exponent, a.r**exponent, a.power * exponent, a.logs * exponent)
    except OverflowError:
        return None


def _raised(a: Growth, b: Growth) -> Growth | None:
    constant = (1.0, 0.0, 0.0)
    if b.order == constant:
        return _power(a, b.c)
    if a.order == constant and a.c > 0 and b.order == (1.0, 1.0, 0.0):
        return Growth(1.0, r=a.c**b.c)  # up to a constant factor
    return None


def _log(a: Growth) -> Growth | None:
    if abs(a.r - 1) > CLOSE:
        return Growth(math.log(a.r), power=1.0)
    if a.power:
        return Growth(a.power, logs=1.0)
    constant = math.log(a.c) if not a.logs else 0.0
    return Growth(constant) if constant else None


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the convergence theorems ask of a step size; None where it cannot be decided."""

    positive: bool | None  # for large k
    vanishes: bool | None  # α_k → 0
    sum_infinite: bool | None  # Σ α_k = ∞
    squares_finite: bool | None  # Σ α_k² < ∞


def conditions(growth: Growth | None) -> Conditions:
    """Decide them from how the step size behaves for large k."""
    if growth is None:
        return Conditions(None, None, None, None)
    if growth.c == 0:
        return Conditions(False, True, False, True)
    squared = _product(growth, growth)
    return Conditions(
        positive=growth.c > 0,
        vanishes=growth.order < (1.0, 0.0, 0.0),
        sum_infinite=not _sum_is_finite(growth),
        squares_finite=_sum_is_finite(squared),
    )


def _sum_is_finite(growth: Growth) -> bool:
    """Tell whether Σ r^k k^power log(k)^logs is finite."""
    return growth.order < (1.0, -1.0, -1.0)

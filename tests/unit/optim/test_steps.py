import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.optim.steps import Conditions, StepError, conditions, parse_decay

YES = (True, True)


def parsed(text, **names):
    return parse_decay(text, {"alpha0": 0.5, **names})


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("alpha0 / (k + 1)", lambda k: 0.5 / (k + 1)),
        ("alpha0/(k+1)^0.75", lambda k: 0.5 / (k + 1) ** 0.75),
        ("alpha0 / (k + 1) ** p", lambda k: 0.5 / (k + 1) ** 0.6),
        ("alpha0/sqrt(k+1)", lambda k: 0.5 / math.sqrt(k + 1)),
        ("alpha0", lambda _: 0.5),
        ("-(-alpha0) * 2 - 0.25", lambda _: 0.75),
        ("alpha0 * 0.9^k", lambda k: 0.5 * 0.9**k),
        ("alpha0 / log(k + 2)", lambda k: 0.5 / math.log(k + 2)),
    ],
)
def test_a_rule_has_the_values_of_its_formula(text, formula):
    decay = parsed(text, p=0.6)
    ks = [0, 1, 2, 10, 1999]
    assert [decay.value(k) for k in ks] == [formula(k) for k in ks]
    np.testing.assert_allclose(decay.values(np.array(ks)), [formula(k) for k in ks], rtol=1e-14)


# Text, then: Σ α_k = ∞, Σ α_k² < ∞.
DECIDED = [
    ("alpha0 / (k + 1)", YES),
    ("alpha0 / (3*k + 100)", YES),
    ("alpha0 / (k + 1)^0.75", YES),
    ("alpha0 / (k + 1)^0.5", (True, False)),
    ("alpha0 / sqrt(k + 1)", (True, False)),
    ("alpha0 / (k + 1)^0.3", (True, False)),
    ("alpha0 / (k + 1)^1.01", (False, True)),
    ("alpha0 / (k + 1)^2", (False, True)),
    ("alpha0", (True, False)),
    ("alpha0 + 1/(k + 1)", (True, False)),
    ("alpha0 * 0.99^k", (False, True)),
    ("alpha0 * 0.99^(k/10 + 3)", (False, True)),
    ("alpha0 * 1.01^k", (True, False)),
    ("alpha0 / ((k + 2) * log(k + 2))", YES),
    ("alpha0 / ((k + 2) * log(k + 2)^2)", (False, True)),
    ("alpha0 / (sqrt(k + 2) * log(k + 2))", YES),
    ("alpha0 * log(k + 2) / sqrt(k + 1)", (True, False)),
    ("alpha0 * (k + 1) / (k^2 + 3)", YES),
    ("(k^2 + 1) / (k^3 + 7) - 1/(k + 1)^2", YES),
    ("alpha0 * k", (True, False)),
    ("alpha0 / (0.1 + 0.2*k)^(0.1 + 0.2 + 0.2)", (True, False)),
]


@pytest.mark.parametrize(("text", "decided"), DECIDED, ids=[text for text, _ in DECIDED])
def test_conditions_follow_from_the_rule(text, decided):
    found = conditions(parsed(text).growth())
    assert (found.sum_infinite, found.squares_finite) == decided


@given(st.floats(0.05, 3))
def test_powers_are_decided_by_their_exponent(p):
    found = conditions(parsed("alpha0 / (k + 1)^p", p=p).growth())
    assert found.sum_infinite is (p <= 1 + 1e-12)
    assert found.squares_finite is (2 * p > 1 + 1e-12)
    assert found.vanishes is True


def test_what_does_not_stay_positive_is_known():
    assert conditions(parsed("alpha0 - 0.1 * k").growth()).positive is False
    assert conditions(parsed("alpha0 - 0.5 + 0/(k + 1)").growth()).positive is not True


@pytest.mark.parametrize(
    "text", ["1/(k + 1) - 1/(k + 2)", "alpha0^sqrt(k)", "k^k", "log(1 + 0*k)", "(-1)^k"]
)
def test_what_cannot_be_decided_is_not_guessed(text):
    assert conditions(parsed(text).growth()) == Conditions(None, None, None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('true')", "may not stand there; allowed: numbers, k, alpha0"),
        ("(lambda: 1)()", "may not stand there"),
        ("[1][0]", "may not stand there"),
        ("k if k else 1", "may not stand there"),
        ("alpha0 @ k", "may not stand there"),
        ("alpha0 // k", "may not stand there"),
        ("exp(k)", "may not stand there"),
        ("sqrt(k, k)", "may not stand there"),
        ("sqrt(x=k)", "may not stand there"),
        ("True", "may not stand there"),
        ("1j", "may not stand there"),
        ("'a'", "may not stand there"),
        ("9e200", "may not stand there"),
        ("alpha / (k + 1)", "alpha is unknown"),
        ("alpha0 / (k + 1)^p", "the setting p is missing"),
        ("alpha0 / (k + 1", "is no expression"),
        ("", "is no expression"),
        ("a\0b", "is no expression"),
        ("k = 3", "is no expression"),
        ("(" * 95 + "k" + ")" * 95, "."),
        ("-" * 150 + "k", "nested too deep"),
        ("1" * 300, "longer than 200"),
    ],
)
def test_anything_else_is_refused_and_never_run(text, message):
    if message == ".":
        assert parsed(text).value(3) == 3
        return
    with pytest.raises(StepError, match=message):
        parsed(text)


@pytest.mark.parametrize("text", ["1/k", "log(k)", "sqrt(k - 5)", "(k - 5)^0.5", "1e99^(9*9)"])
def test_a_value_that_is_not_finite_names_the_round(text):
    with pytest.raises(StepError, match="no finite number at k = 0"):
        parsed(text).value(0)


@given(st.text("k0123456789.+-*/^() alphsqrtog", max_size=40))
def test_no_text_crashes(text):
    try:
        decay = parsed(text)
        decay.growth()
        assert math.isfinite(decay.value(7))
    except StepError:
        pass

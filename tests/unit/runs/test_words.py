import pytest

from zmqps.runs import words


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0:00"), (74.9, "1:14"), (3723, "1:02:03"), (-1, "-"), (float("nan"), "-"), ("1", "-")],
)
def test_spans(value, text):
    assert words.span(value) == text


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (1234567.8, ",", "1,234,568"),
        (0.5, ".0%", "50%"),
        (None, ",", "-"),
        (True, ",", "-"),
        (float("inf"), ",", "inf"),
        (float("nan"), ",", "nan"),
    ],
)
def test_numbers(value, form, text):
    assert words.number(value, form) == text


def test_versions_are_counts_of_updates():
    assert words.version([2, 1200]) == "1,200"
    assert words.version(7) == "7"
    assert words.version(None) == "-"


def test_sparks():
    assert words.sparks([0.1, 0.2, None, float("nan"), 0.8]) == "▁▂█"
    assert words.sparks([0.5, 0.5]) == "▁▁"
    assert words.sparks([0.5]) == ""
    assert len(words.sparks(range(1000))) == words.SPARKS_MAX


def test_members_are_told_by_number():
    names = [{"name": name} for name in ("replica-10", "replica-2", "broker-1", 5)]
    found = [one["name"] for one in words.in_order(names)]
    assert found == [5, "broker-1", "replica-2", "replica-10"]


@pytest.mark.parametrize(("value", "text"), [(1, "1 step"), (2000, "2,000 steps"), (None, "-")])
def test_counts(value, text):
    assert words.count(value, "step") == text

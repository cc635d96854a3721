from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zmqps.data.error import DataError
from zmqps.data.subset import Subset


def passes(subset: Subset, count: int) -> np.ndarray[Any, Any]:
    """The indices of whole passes, as rows."""
    steps = -(-count * len(subset) // subset.batch)
    flat = np.concatenate([subset.indices(step) for step in range(steps)])
    return flat[: count * len(subset)].reshape(count, len(subset))


@st.composite
def divisions(draw: st.DrawFn) -> dict[str, int]:
    size = draw(st.integers(1, 60))
    slots = draw(st.integers(1, size))
    batch = draw(st.integers(1, size // slots))
    return {"seed": draw(st.integers(0, 2**64 - 1)), "size": size, "slots": slots, "batch": batch}


@given(divisions())
def test_subsets_are_disjoint_even_and_cover_the_training_set(division: dict[str, int]) -> None:
    subsets = [Subset(slot=slot, **division) for slot in range(division["slots"])]
    seen = np.concatenate([passes(subset, 1)[0] for subset in subsets])
    assert sorted(seen) == list(range(division["size"]))
    lengths = [len(subset) for subset in subsets]
    assert max(lengths) - min(lengths) <= 1


@given(divisions(), st.data())
def test_each_pass_visits_each_image_once_in_full_batches(
    division: dict[str, int], data: st.DataObject
) -> None:
    subset = Subset(slot=data.draw(st.integers(0, division["slots"] - 1)), **division)
    rows = passes(subset, 4)
    assert all(np.array_equal(np.sort(row), np.sort(rows[0])) for row in rows)
    for step in range(5):
        indices = subset.indices(step)
        assert indices.shape == (division["batch"],)
        assert indices.dtype == np.int64


@settings(deadline=None)
@given(divisions(), st.lists(st.integers(0, 10**9), min_size=1, max_size=5))
def test_a_step_depends_on_its_number_only(division: dict[str, int], steps: list[int]) -> None:
    used = Subset(slot=0, **division)
    for step in [*steps, steps[0]]:
        fresh = Subset(slot=0, **division)
        np.testing.assert_array_equal(used.indices(step), fresh.indices(step))


def test_seed_slot_pass_and_order_each_change_the_order() -> None:
    base = {"seed": 1, "size": 200, "slot": 0, "slots": 2, "batch": 100}
    first, second = passes(Subset(**base), 2)
    other = passes(Subset(**base, order=1), 1)[0]
    seeded = passes(Subset(**{**base, "seed": 2}), 1)[0]
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert set(first) == set(other)
    assert set(first) != set(seeded)


def test_what_is_handed_out_cannot_change_later_passes() -> None:
    subset = Subset(seed=1, size=10, slot=0, slots=1, batch=5)
    with pytest.raises(ValueError, match="read-only"):
        subset.indices(0)[0] = 3


def test_few_orders_are_kept() -> None:
    subset = Subset(seed=1, size=10, slot=0, slots=1, batch=7)
    for step in range(50):
        subset.indices(step)
    assert len(subset._passes) <= 2


def test_indices_are_the_same_on_every_machine_and_release() -> None:
    subset = Subset(seed=20121203, size=60000, slot=1, slots=3, batch=4)
    assert subset.indices(0).tolist() == [6665, 45666, 14143, 24532]
    assert subset.indices(5000).tolist() == [1837, 55910, 14659, 20974]
    again = Subset(seed=20121203, size=60000, slot=1, slots=3, batch=4, order=1)
    assert again.indices(10**12).tolist() == [54638, 17767, 28548, 39725]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": 11}, "more replicas than data: 11 replicas share 10 training images"),
        (
            {"batch": 4},
            "batch: 4, expected 1 to 3, the images of one subset .10 training images, 3",
        ),
        ({"batch": 0}, "batch: 0, expected 1 to 3"),
        ({"slot": 3}, "slot: 3, expected 0 to 2"),
        ({"slot": -1}, "slot: -1, expected 0 to 2"),
    ],
)
def test_numbers_that_do_not_fit_are_named(change: dict[str, int], message: str) -> None:
    fits = {"seed": 0, "size": 10, "slot": 1, "slots": 3, "batch": 3}
    assert len(Subset(**fits)) == 3
    with pytest.raises(DataError, match=message):
        Subset(**{**fits, **change})

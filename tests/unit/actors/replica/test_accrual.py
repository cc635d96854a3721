import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.actors.replica.scripted import freeze, layout_of
from zmqps.actors.replica.accrual import Accrual
from zmqps.protocol.keys import Layout
from zmqps.protocol.parts import Version
from zmqps.protocol.share import Share

LAYOUT = layout_of()


def compute(accrual, value, versions=None):
    """Compute one gradient, every element of which is `value`."""
    out = accrual.begin(versions or {})
    for array in out.values():
        array[...] = value
    accrual.add(out)
    accrual.check_invariants()
    return out


@given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=4), max_size=4))
def test_each_sum_is_that_of_the_gradients_since_the_last_and_is_never_written_again(pushes):
    accrual = Accrual(Share.whole(LAYOUT))
    taken = []
    for values in pushes:
        for value in values:
            compute(accrual, value)
        count, arrays, _ = accrual.take()
        assert count == len(values)
        for array in arrays.values():
            freeze(array)
        taken.append((sum(values), arrays))
    for total, arrays in taken:
        for spec in LAYOUT.tensors:
            assert arrays[spec.name].dtype == spec.dtype
            assert np.array_equal(arrays[spec.name], np.full(spec.shape, total))


def test_a_single_gradient_is_given_away_as_it_was_computed():
    accrual = Accrual(Share.whole(LAYOUT))
    out = compute(accrual, 1)
    assert accrual.take()[1] is out


def test_the_versions_are_those_of_the_first_gradient():
    accrual = Accrual(Share.whole(LAYOUT))
    versions = {1: Version(1, 5)}
    compute(accrual, 1, versions)
    versions[1] = Version(1, 8)
    compute(accrual, 1, versions)
    assert accrual.take()[2] == {1: Version(1, 5)}
    compute(accrual, 1, versions)
    assert accrual.take()[2] == {1: Version(1, 8)}


@pytest.mark.parametrize("gradients", [1, 3])
def test_a_model_without_tensors(gradients):
    accrual = Accrual(Share.whole(Layout(())))
    for _ in range(gradients):
        compute(accrual, 1)
    assert accrual.take() == (gradients, {}, {})

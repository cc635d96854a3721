import numpy as np

from zmqps.optim.objectives import Quadratic
from zmqps.optim.own import RowFunction


def test_a_row_is_the_function_of_one_agent():
    one = RowFunction(Quadratic(np.array([[1.0, 2.0], [3.0, 5.0]])).only(1))
    x = np.array([4.0, 4.0])
    assert (one.dimension, one.value(x)) == (2, 1.0)
    found = one.subgradient(x, 0)
    assert found.tolist() == [1.0, -1.0]
    found[:] = 0
    assert one.subgradient(x, 1).tolist() == [1.0, -1.0]

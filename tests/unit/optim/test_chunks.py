import numpy as np

from zmqps.optim.chunks import flat, pieces


def test_pieces_are_views_of_a_contiguous_array():
    array = np.arange(10.0).reshape(2, 5)
    found = list(pieces(array, 4))
    assert [piece.tolist() for piece in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all(np.shares_memory(piece, array) for piece in found)


def test_pieces_of_a_strided_array_come_in_c_order_and_copy_only_themselves():
    array = np.arange(12.0).reshape(3, 4).T
    assert [piece.tolist() for piece in pieces(array, 5)] == [
        [0, 4, 8, 1, 5],
        [9, 2, 6, 10, 3],
        [7, 11],
    ]
    assert not isinstance(flat(array), np.ndarray)


def test_pieces_of_scalars_and_empty_arrays():
    assert [piece.tolist() for piece in pieces(np.array(3.0), 4)] == [[3.0]]
    assert list(pieces(np.empty((0, 3)), 4)) == []

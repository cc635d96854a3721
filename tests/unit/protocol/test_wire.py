import math
import tracemalloc
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import hypothesis.extra.numpy as hnp
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zmqps.protocol.errors import LocalError, ProtocolError
from zmqps.protocol.messages import PROTOCOL_VERSION, Body, Heartbeat, Message, Push, Status
from zmqps.protocol.parts import NEVER, Part
from zmqps.protocol.wire import (
    ARRAYS_MAX,
    AXES_MAX,
    HEADER_BYTES_MAX,
    SIGNATURE,
    UINT64_MAX,
    VersionError,
    decode,
    decode_header,
    encode,
)

KINDS = get_args(Body)
WORDS = st.text(max_size=8)
INTEGERS = st.one_of(st.sampled_from([0, -(2**63), UINT64_MAX]), st.integers(-(2**63), UINT64_MAX))
PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), INTEGERS, st.floats(allow_nan=False), WORDS, st.binary(max_size=8)
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """What a field of this type may hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    simple = {int: INTEGERS, float: st.floats(allow_nan=False), str: WORDS, bool: st.booleans()}
    if hint in simple:
        return simple[hint]
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is dict:
        return st.dictionaries(WORDS, PLAIN, max_size=3)
    if origin is list:
        return st.lists(PLAIN, max_size=3)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    hints = get_type_hints(hint)
    return st.builds(hint, *(values_of(hints[name]) for name in hint._fields))


def bodies_of(cls: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, *(values_of(hints[field.name]) for field in fields(cls)))


NUMBERS = st.integers(0, UINT64_MAX)
SHAPES = hnp.array_shapes(min_dims=0, min_side=0, max_side=4)
ARRAYS = st.lists(hnp.arrays(st.sampled_from([np.float32, np.float64]), SHAPES), max_size=3)


def messages_of(bodies: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    return st.builds(Message, NUMBERS, NUMBERS, bodies, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


MESSAGES = messages_of(st.one_of(*map(bodies_of, KINDS)))


def as_bytes(frames: list[Any]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


# --- Round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_every_kind_of_message_comes_back_as_it_was(cls, data):
    message = data.draw(messages_of(bodies_of(cls)))
    got, arrays = decode(as_bytes(encode(message)))
    assert got == message
    assert arrays == []
    for field in fields(got.body):
        value = getattr(got.body, field.name)
        assert type(value) is type(getattr(message.body, field.name))
        if isinstance(value, tuple) and value:
            assert type(value[0]) is type(getattr(message.body, field.name)[0])


@given(arrays=ARRAYS)
def test_arrays_come_back_as_they_were_and_cannot_be_written(arrays):
    _, got = decode(as_bytes(encode(Message(1, 1, Heartbeat()), arrays)))
    for array, sent in zip(got, arrays, strict=True):
        assert (array.dtype, array.shape) == (sent.dtype, sent.shape)
        assert array.tobytes() == sent.tobytes()
        assert not array.flags.writeable


def test_arrays_are_not_copied_either_way():
    sent = np.ones(1000, np.float32)
    frames = encode(Message(1, 1, Heartbeat()), [sent])
    assert np.shares_memory(np.frombuffer(frames[1], np.float32), sent)
    _, (got,) = decode(frames)
    assert np.shares_memory(got, sent)


@pytest.mark.parametrize(
    "array",
    [
        np.ones(3, np.int32),
        np.ones(3, np.float16),
        np.ones(3, ">f4"),
        np.ones((4, 4), np.float32)[:, :2],
        np.ones((4, 4), np.float32).T,
    ],
)
def test_an_array_that_has_no_wire_form_is_our_mistake(array):
    with pytest.raises(LocalError, match="cannot send"):
        encode(Message(1, 1, Heartbeat()), [array])


# --- What a peer may send -------------------------------------------------------------------------


def decode_or_refuse(frames: list[bytes]) -> None:
    try:
        message, arrays = decode(frames)
    except ProtocolError as error:
        reason = str(error)
    else:
        assert encode(message, arrays)[1:] == frames[1:]
        return
    assert len(reason) < 400


@given(frames=st.lists(st.binary(max_size=64), max_size=3))
def test_random_bytes_raise_protocol_errors_only(frames):
    with pytest.raises(ProtocolError):
        decode(frames)


@given(message=MESSAGES, arrays=ARRAYS, data=st.data())
def test_a_message_cut_short_is_refused(message, arrays, data):
    frames = as_bytes(encode(message, arrays))
    i = data.draw(st.integers(0, len(frames) - 1))
    if frames[i]:
        short = frames[i][: data.draw(st.integers(0, len(frames[i]) - 1))]
        with pytest.raises(ProtocolError):
            decode([*frames[:i], short, *frames[i + 1 :]])
    with pytest.raises(ProtocolError):
        decode([*frames[:i], *frames[i + 1 :]])
    with pytest.raises(ProtocolError):
        decode([*frames, b""])


@given(message=MESSAGES, arrays=ARRAYS, data=st.data())
def test_bytes_changed_on_the_way_are_refused_or_mean_something_else(message, arrays, data):
    frames = as_bytes(encode(message, arrays))
    header = bytearray(frames[0])
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse([bytes(header), *frames[1:]])


@given(message=MESSAGES, arrays=ARRAYS, data=st.data())
def test_a_value_of_another_type_in_any_place_is_refused_or_means_something_else(
    message, arrays, data
):
    frames = as_bytes(encode(message, arrays))
    header = msgpack.unpackb(frames[0])
    place: Any = header
    while True:  # walk down to some place and put anything there
        i = data.draw(st.integers(0, len(place) - 1))
        if not (isinstance(place[i], list) and place[i] and data.draw(st.booleans())):
            break
        place = place[i]
    place[i] = data.draw(PLAIN)
    decode_or_refuse([msgpack.packb(header), *frames[1:]])


SIDES = st.sampled_from([0, 1, 2, 3, 2**16, 2**31, 2**32, 2**56, 2**63, UINT64_MAX])


@given(shape=st.lists(SIDES, max_size=AXES_MAX + 1), size=st.integers(0, 64))
def test_a_shape_is_compared_with_what_came_before_anything_is_made(shape, size):
    header = [
        SIGNATURE,
        PROTOCOL_VERSION,
        "Heartbeat",
        1,
        1,
        0,
        0,
        0,
        0,
        0,
        [],
        [["float32", shape]],
    ]
    frames = [msgpack.packb(header), bytes(size)]
    if 4 * math.prod(shape) != size or len(shape) > AXES_MAX:
        with pytest.raises(ProtocolError):
            decode(frames)
    else:
        decode_or_refuse(frames)


def changed(place: int, value: Any) -> bytes:
    header = [SIGNATURE, PROTOCOL_VERSION, "Heartbeat", 1, 1, 0, 0, 0, 0, 0, [], []]
    header[place] = value
    return msgpack.packb(header)


REFUSED = {
    "no list": msgpack.packb({"zmqps": 1}),
    "signature": changed(0, "zmqpt"),
    "kind unknown": changed(2, "Heartbeats"),
    "kind no text": changed(2, ["Heartbeat"]),
    "negative number": changed(4, -1),
    "number is a boolean": changed(4, True),
    "number is a float": changed(4, 1.0),
    "fields no list": changed(10, {}),
    "too many fields": changed(10, [1]),
    "arrays no list": changed(11, None),
    "too many arrays": changed(11, [["float32", [1]]] * (ARRAYS_MAX + 1)),
    "more after the end": changed(0, SIGNATURE) + b"\x00",
    "too deep": b"\x91" * 100_000,
    "too long": b"\x9c\xa5zmqps" + bytes(HEADER_BYTES_MAX),
    "array of 4 G": b"\xdd\xff\xff\xff\xff",
    "map of 4 G": b"\xdf\xff\xff\xff\xff",
    "text of 4 GB": b"\x92\xa5zmqps\xdb\xff\xff\xff\xff",
    "extension": b"\x92\xa5zmqps\xc9\x7f\xff\xff\xff\x01",
    "many lists": b"\x9c\xa5zmqps\x01\xdd\x00\x1f\xff\xff" + b"\x90" * ((1 << 21) + 8),
    "many maps": b"\x9c\xa5zmqps\x01\xdd\x00\x1f\xff\xff" + b"\x80" * ((1 << 21) + 8),
    "map key of a map": b"\x9c\xa5zmqps\x01\x81\x80\x00",
}


@pytest.mark.parametrize("header", REFUSED.values(), ids=REFUSED)
def test_a_wrong_header_is_refused_without_much_memory(header):
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode_header([header])
        assert tracemalloc.get_traced_memory()[1] < (3 << 20) + 16 * len(header)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "described",
    [
        [["float32", [1 << 40]]],
        [["float32", [0, 1 << 60]]],
        [["float32", [1] * (AXES_MAX + 1)]],
        [["float32", [-1]]],
        [["float32", 1]],
        [["float32"]],
        [["int8", [4]]],
        [["object", [1]]],
        [[["float32"], [1]]],
        [["float32", [1]], ["float32", [1]]],
        [],
        ["float32"],
        [None],
    ],
)
def test_a_wrong_array_is_refused_without_much_memory(described):
    header = changed(11, described)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode([header, bytes(4) if described != [["float32", [0, 1 << 60]]] else b""])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [0, 1, 3, 255, "1", None, [1] * 1000])
def test_another_version_is_told_apart(version):
    with pytest.raises(VersionError, match="this is version 2"):
        decode([changed(1, version)])
    # Whatever its header looks like otherwise.
    with pytest.raises(VersionError):
        decode([msgpack.packb([SIGNATURE, version])])


def test_an_error_names_the_field():
    push = Message(1, 1, Push(1, 1, (Part(1, 0, 1, NEVER),)))
    header = msgpack.unpackb(encode(push)[0])
    header[10][2][0][3] = [0, "x"]
    with pytest.raises(ProtocolError, match=r"^Push\.parts: 'x' is no integer"):
        decode([msgpack.packb(header)])


def test_an_integer_that_msgpack_cannot_hold_is_our_mistake():
    with pytest.raises(OverflowError):
        encode(Message(1, 1, Status({"x": 1 << 64})))

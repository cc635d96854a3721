"""Lines are told apart by how they begin, and what is no line is replaced."""

from zmqps.trace.pieces import BAD, LINE_BYTES_MAX, by_event
from zmqps.trace.schema import EVENTS

CLOCK = b'{"event":"Clock","at":1.5,"actor":"x"}\n'
LEFT = b'{"event":"Left","at":2.5,"actor":"x"}\n'


def found(data):
    return {name: (text, list(indices)) for name, text, indices in by_event(data)}


def test_each_event_is_told_from_all_others():
    lines = [f'{{"event":"{name}","at":{n}.25}}\n'.encode() for n, name in enumerate(EVENTS)]
    assert found(b"".join(lines)) == {
        name: (line, [n]) for n, (name, line) in enumerate(zip(EVENTS, lines, strict=True))
    }


def test_lines_of_one_event_go_on_as_they_are():
    assert found(CLOCK * 3) == {"Clock": (CLOCK * 3, [0, 1, 2])}
    assert found(CLOCK + LEFT + CLOCK) == {"Clock": (CLOCK * 2, [0, 2]), "Left": (LEFT, [1])}


def test_what_is_no_line_has_its_place_too():
    long = b"x" * (LINE_BYTES_MAX + 1) + b"\n"
    for odd in (b"\n", b"\x00\n", b"\xff\xfe\n", b"\x01\n", long):
        assert found(CLOCK + odd + LEFT)[""] == (BAD + b"\n", [1])
    assert found(b"{}\n" + CLOCK) == {"": (b"{}\n", [0]), "Clock": (CLOCK, [1])}
    assert found(CLOCK[:-1] + b"\r\n") == {"Clock": (CLOCK, [0])}
    umlaut = CLOCK.replace(b"x", "ä".encode())
    assert found(umlaut) == {"Clock": (umlaut, [0])}

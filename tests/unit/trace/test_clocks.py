"""Clocks of a known offset and drift, messages of random delays: is the truth within the bound?"""

import math

import numpy as np
import pytest

from zmqps.trace.clocks import DRIFT_MAX, Bounds, Clock, Messages, Wall, solve

SEEDS = 20  # random cases for each seed


class Host:
    """A clock that shows skew + t + a drift that changes: a slope and a slow wave, within `drift`.

    The logs' clock is monotonic: it began at any time. The wall clock is off by `skew`.
    """

    def __init__(self, random, skew=None, drift=DRIFT_MAX / 2):
        self.skew = random.uniform(-5, 5) if skew is None else skew
        self.start = random.uniform(0, 1e6)
        self.slope = random.uniform(-1, 1) * drift / 2
        self.wave = random.uniform(0, 1) * drift / 2
        self.phase = random.uniform(0, 6)

    def __call__(self, t):
        return self.start + t + self.slope * t + self.wave * 20 * np.sin(t / 20 + self.phase)

    def wall(self, t):
        """Wall clocks are read every 5 s, and count as the logs' clock does."""
        at = self(np.arange(t.min(), t.max(), 5.0))
        return Wall(at, at - self.start + 1.7e9 + self.skew)


def exchange(random, a, b, times, delay=2e-4, tail=5e-3):
    """Requests from a to b and answers: delays have a least value and a long tail."""
    there = times + delay + random.exponential(tail, len(times))
    done = there + random.exponential(1e-3, len(times))
    back = done + delay + random.exponential(tail, len(times))
    return Messages(a(times), b(there)), Messages(b(done), a(back))


def cases(seed):
    return range(SEEDS * seed, SEEDS * (seed + 1))


def a_run(number, hosts=3, span=100.0, count=2000):
    random = np.random.default_rng(number)
    clocks = {f"h{i}": Host(random) for i in range(hosts)}
    messages = {}
    for i in range(1, hosts):
        times = np.sort(random.uniform(0, span, count))
        there, back = exchange(random, clocks[f"h{i}"], clocks["h0"], times)
        messages[f"h{i}", "h0"], messages["h0", f"h{i}"] = there, back
    t = np.linspace(0, span, 501)
    return clocks, messages, {name: clock.wall(t) for name, clock in clocks.items()}, t


def test_the_truth_is_within_the_bound_which_is_small(seed):
    for number in cases(seed):
        clocks, messages, walls, t = a_run(number)
        found = solve(messages, walls, "h0")
        assert np.all(found["h0"].offset(clocks["h0"](t)) == 0)
        assert np.all(found["h0"].error(clocks["h0"](t)) == 0)
        for name in ("h1", "h2"):
            own = clocks[name](t)
            off = np.abs(found[name].offset(own) - (clocks["h0"](t) - own))
            error = found[name].error(own)
            assert np.all(off <= error + 1e-9)
            assert np.all(error[5:-5] < 2e-3)  # the middle one of the delays is 3.7 ms
            assert found[name].contradiction == 0


def test_skew_of_wall_clocks_and_drift_are_found_within_their_bounds(seed):
    for number in cases(seed):
        clocks, messages, walls, t = a_run(number)
        found = solve(messages, walls, "h0")
        for name in ("h1", "h2"):
            own = clocks[name](t)
            skew = clocks[name].wall(t).wall[0] - clocks["h0"].wall(t).wall[0]
            ahead = found[name].wall_ahead(own[0])
            assert abs(ahead - skew) <= found[name].error(own[:1])[0] + 1e-5
            offset = clocks["h0"](t) - own
            drift = (offset[-1] - offset[0]) / (own[-1] - own[0])
            low, high = found[name].drift(own[0], own[-1])
            assert low - 1e-9 <= drift <= high + 1e-9
            assert high - low < 2e-4


def test_bounds_add_up_over_hosts_in_between(seed):
    for number in cases(seed):
        random = np.random.default_rng(number)
        a, b, c = (Host(random) for _ in range(3))
        times = np.sort(random.uniform(0, 50, 800))
        messages = {}
        messages["a", "b"], messages["b", "a"] = exchange(random, a, b, times)
        messages["b", "c"], messages["c", "b"] = exchange(random, b, c, times)
        t = np.linspace(0, 50, 101)
        far = solve(messages, {}, "c")["a"]
        off = np.abs(far.offset(a(t)) - (c(t) - a(t)))
        assert np.all(off <= far.error(a(t)) + 1e-9)
        near = solve(messages, {}, "b")["a"]
        assert np.all(far.error(a(t)) >= near.error(a(t)) - 1e-9)


def test_of_two_ways_the_narrower_is_taken():
    random = np.random.default_rng(1)
    a, b, c = (Host(random) for _ in range(3))
    times = np.linspace(0, 10, 100)
    messages = {}
    messages["a", "c"], messages["c", "a"] = exchange(random, a, c, times, delay=0.2)
    messages["a", "b"], messages["b", "a"] = exchange(random, a, b, times)
    messages["b", "c"], messages["c", "b"] = exchange(random, b, c, times)
    clock = solve(messages, {}, "c")["a"]
    assert len(clock.path) == 2
    assert clock.error(a(times)).max() < 0.02


@pytest.mark.parametrize("way", ["there", "back"])
def test_one_sided_traffic_gives_an_unknown_bound_and_keeps_the_order(seed, way):
    for number in cases(seed):
        random = np.random.default_rng(number)
        a, b = Host(random), Host(random)
        times = np.linspace(0, 20, 200)
        there, back = exchange(random, a, b, times)
        messages = {("a", "b"): there} if way == "there" else {("b", "a"): back}
        walls = {"a": a.wall(times), "b": b.wall(times)}
        clock = solve(messages, walls, "b")["a"]
        assert np.all(np.isinf(clock.error(a(times))))
        assert clock.drift(a(0), a(20)) == (-math.inf, math.inf)
        if way == "there":
            assert np.all(there.sent + clock.offset(there.sent) <= there.received + 1e-9)
        else:
            assert np.all(back.received + clock.offset(back.received) >= back.sent - 1e-9)


def test_hosts_without_messages_are_where_their_wall_clocks_say():
    random = np.random.default_rng(3)
    a, b = Host(random, skew=0.0, drift=0), Host(random, skew=0.0, drift=0)
    t = np.linspace(0, 20, 50)
    clock = solve({}, {"a": a.wall(t), "b": b.wall(t)}, "b")["a"]
    assert np.allclose(clock.offset(a(t)), b(t) - a(t), atol=1e-5)
    assert np.all(np.isinf(clock.error(a(t))))


def test_a_clock_that_stepped_is_a_contradiction():
    there = Messages(np.array([0.0, 10.0]), np.array([0.001, 15.001]))
    back = Messages(np.array([0.002, 15.002]), np.array([0.003, 10.003]))
    assert Bounds(there, back).contradiction == pytest.approx(5, abs=0.02)
    assert Clock("a", (Bounds(there, back),), None, None).contradiction > 4


def test_bounds_are_those_of_the_formula():
    random = np.random.default_rng(5)
    there = Messages(random.uniform(0, 10, 30), random.uniform(10, 20, 30))
    back = Messages(random.uniform(0, 10, 20), random.uniform(10, 20, 20))
    bounds = Bounds(there, back, drift_max=0.3)
    t = random.uniform(-5, 25, 100)
    for one in t:
        high = min(
            r - s + 0.3 * abs(one - s) for s, r in zip(there.sent, there.received, strict=True)
        )
        low = max(s - r - 0.3 * abs(one - r) for s, r in zip(back.sent, back.received, strict=True))
        assert bounds.high_at(np.array([one]))[0] == pytest.approx(high)
        assert bounds.low_at(np.array([one]))[0] == pytest.approx(low)


def test_corrected_clocks_never_run_backwards():
    for number in range(10):
        clocks, messages, walls, _ = a_run(number, count=300)
        own = clocks["h1"](np.linspace(0, 100, 20_000))
        corrected = own + solve(messages, walls, "h0")["h1"].offset(own)
        assert np.all(np.diff(corrected) > 0)


def test_the_reference_is_the_busiest_unless_told():
    _, messages, walls, _ = a_run(1)
    assert solve(messages, walls)["h0"].path == ()

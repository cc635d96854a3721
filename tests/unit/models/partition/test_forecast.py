import pytest

from zmqps.models.build import build_layers
from zmqps.models.partition.forecast import LayerCost, Links, step_seconds
from zmqps.models.partition.planner import plan
from zmqps.models.settings import ModelSettings

LOCAL = {"kind": "locally_connected", "filters": 8, "kernel": 5, "padding": "same"}
OUT = {"kind": "dense", "units": 10}
FREE = Links(bytes_per_s=1e30, latency_s=0, message_s=0)


def cut_of(entries, shape, stages, **options):
    settings = ModelSettings.model_validate({"layers": entries})
    return plan(build_layers(settings, shape, 10), shape, stages, **options)


def costs_of(cut, second_per_work=1e-9):
    work = [la.multiply_adds(s) for la, s in zip(cut.layers, cut.shapes, strict=False)]
    return [LayerCost(w * second_per_work, 2 * w * second_per_work) for w in work]


def test_one_stage_takes_what_its_layers_take() -> None:
    cut = cut_of([LOCAL, OUT], (16, 16, 1), 1)
    costs = costs_of(cut)
    below = sum(c.up_s for c in costs) + sum(c.down_s for c in costs[cut.first :])
    assert step_seconds(cut, costs, Links(), 8) == pytest.approx(8 * below)


def test_a_free_network_divides_the_work() -> None:
    entries = [{"kind": "dense", "units": 64}] * 3 + [{"kind": "dense", "units": 10}]
    one = cut_of(entries, (64,), 1)
    four = cut_of(entries, (64,), 4, spread=True)
    costs = [c if n < len(one.layers) - 2 else LayerCost(0, 0) for n, c in enumerate(costs_of(one))]
    times = [step_seconds(cut, costs, FREE, 8) for cut in (one, four)]
    assert times[0] / times[1] == pytest.approx(4)


def test_two_stages_on_a_slow_link_by_hand() -> None:
    # One dense layer of 2 units on 2 stages: nothing but the scores crosses, there and back.
    cut = cut_of([{"kind": "dense", "units": 10}], (4,), 2, spread=True)
    links = Links(bytes_per_s=1000, latency_s=3, message_s=0.25)
    costs = [LayerCost(2.0, 4.0), LayerCost(0.0, 0.0)]
    # Half of 2 s; then 5 scores of 4 bytes: 0.25 to send, 3 of latency, 0.02 of bytes, 0.25 to
    # take; the same back; half of 4 s.
    assert step_seconds(cut, costs, links, 1) == pytest.approx(1 + 3.52 + 3.52 + 2)


def test_what_is_computed_while_halos_travel_costs_nothing() -> None:
    cut = cut_of([LOCAL, LOCAL, OUT], (32, 8, 1), 2, spread=True)
    state = next(t.state for t in cut.transfers)
    costs = [LayerCost(0, 0)] * len(cut.layers)
    costs[state] = LayerCost(1.0, 0)
    slow = Links(bytes_per_s=1e30, latency_s=0.1, message_s=0)
    hidden = step_seconds(cut, costs, slow, 1)
    waits = step_seconds(cut, [LayerCost(0, 0)] * len(costs), slow, 1)
    assert hidden < waits + 0.5  # 0.1 s of latency went by during the interior's half second


def test_fully_connected_peaks_before_locally_connected() -> None:
    def best(entries, shape) -> int:
        times = {}
        for stages in (1, 2, 4, 8, 16, 32):
            cut = cut_of(entries, shape, stages, spread=True)
            times[stages] = step_seconds(cut, costs_of(cut, 2e-10), Links(), 64)
        return min(times, key=times.__getitem__)

    dense = [{"kind": "dense", "units": 512, "activation": "sigmoid"}] * 4 + [OUT]
    local = [{**LOCAL, "filters": 32}] * 3 + [OUT]
    assert best(dense, (440,)) < best(local, (64, 64, 3))

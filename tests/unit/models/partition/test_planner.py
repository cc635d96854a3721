from itertools import product

import pytest

from zmqps.models.build import build_layers
from zmqps.models.errors import ModelError
from zmqps.models.partition.cut import Cut, even, shapes_of
from zmqps.models.partition.figures import figures, fitting
from zmqps.models.partition.planner import Machine, _Chain, plan
from zmqps.models.settings import ModelSettings

CONV = {"kind": "conv2d", "filters": 8, "kernel": 5, "padding": "same"}
LOCAL = {**CONV, "kind": "locally_connected"}
OUT = {"kind": "dense", "units": 10}
VISION = [LOCAL, {"kind": "l2_pool"}, {"kind": "contrast_norm"}, LOCAL, {"kind": "max_pool"}, OUT]
SPEECH = [{"kind": "dense", "units": 320, "activation": "sigmoid"}] * 4 + [OUT]


def layers(entries, shape):
    return build_layers(ModelSettings.model_validate({"layers": entries}), shape, 10)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize(("entries", "shape"), [(VISION, (28, 28, 1)), (SPEECH, (440,))])
def test_every_row_of_every_tensor_belongs_to_one_stage(entries, shape, stages) -> None:
    cut = plan(layers(entries, shape), shape, stages)
    rows: dict[str, list[int]] = {}
    for stage in range(stages):
        for each in cut.tensors(stage):
            rows.setdefault(each.spec.name, []).extend(each.rows)
    specs = {spec.name: spec for layer in cut.layers for spec in layer.tensors}
    assert {n: sorted(r) for n, r in rows.items()} == {
        n: list(range(s.shape[0])) for n, s in specs.items()
    }


def test_the_chain_found_is_the_cheapest_of_all() -> None:
    entries, shape, stages = [LOCAL, {"kind": "l2_pool"}, OUT], (12, 12, 1), 3
    chain = _Chain(layers(entries, shape), shape, stages, Machine(), spread=False)

    def total(bounds) -> float:
        return sum(chain._cost(i, *bounds[i : i + 2]) for i in range(len(bounds) - 1)) + (
            chain._gathered(len(bounds) - 1, bounds[-1])
        )

    free = [i for i, la in enumerate(chain.layers) if la.carry((0,), chain.shapes[i]) is None]
    cheapest = float("inf")
    for choice in product(*(chain._ways(i, {}) for i in free)):
        bounds, left = [even(12, stages)], list(choice)
        for i, layer in enumerate(chain.layers):
            bounds.append(layer.carry(bounds[-1], chain.shapes[i]) or left.pop(0))
        cheapest = min(cheapest, total(bounds))
    assert total(chain.cheapest({})) == pytest.approx(cheapest)


def test_stripes_pass_less_than_they_would_at_a_bad_place() -> None:
    shape = (28, 28, 1)
    built = layers(VISION, shape)
    shapes = shapes_of(built, shape)
    bounds = [even(28, 4)]
    for i, layer in enumerate(built):
        bounds.append(layer.carry(bounds[-1], shapes[i]) or even(shapes[i + 1][0], 4))
    planned = sum(f.bytes_up for f in figures(plan(built, shape, 4), 64))
    assert planned <= sum(f.bytes_up for f in figures(Cut(built, shape, bounds), 64))


def test_work_is_balanced_where_it_is_large() -> None:
    shape = (28, 28, 1)
    found = figures(plan(layers(VISION, shape), shape, 4), 64)
    work = [f.multiply_adds for f in found]
    assert max(work) < 1.3 * sum(work) / 4


def test_layers_that_only_move_values_are_balanced_too() -> None:
    """An even cut of the mean pooling above would give one stage 12 of the rows, and 18."""
    shape = (30, 30, 16)
    entries = [LOCAL, {"kind": "contrast_norm"}, {"kind": "mean_pool", "size": 4}, OUT]
    built = layers(entries, shape)
    norm = next(i for i, la in enumerate(built) if type(la).__name__ == "DivideDeviation")
    assert plan(built, shape, 2).bounds[norm + 1] == (0, 15, 30)


def test_a_slow_network_makes_a_small_layer_stay_together() -> None:
    built = layers(SPEECH, (440,))
    slow = plan(built, (440,), 4, machine=Machine(latency_s=1.0))
    assert not slow.transfers
    fast = plan(built, (440,), 4, machine=Machine(latency_s=0, bytes_per_s=1e15))
    assert {t.state for t in fast.transfers}


def test_layers_are_placed_by_hand() -> None:
    cut = plan(layers(SPEECH, (440,)), (440,), 4, placement={"dense1": [1], "dense2": [0, 3]})
    first, second = (
        next(
            i
            for i, la in enumerate(cut.layers)
            if la.tensors and la.tensors[0].name == f"{n}/kernel"
        )
        for n in ("dense1", "dense2")
    )
    assert cut.readers(first) == [1]
    assert cut.readers(second) == [0, 3]


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"dense9": [0]}, "no layer dense9, there are dense1, dense2"),
        ({"dense1": [4]}, "dense1: stage 4, must be 0 to 3"),
        ({"dense1": []}, "dense1: stage none, must be 0 to 3"),
    ],
)
def test_an_impossible_placement_is_refused(placement, message) -> None:
    with pytest.raises(ModelError, match=message):
        plan(layers(SPEECH, (440,)), (440,), 4, placement=placement)


def test_too_few_partitions_for_the_memory_are_refused_with_how_many_would_do() -> None:
    built, machine = layers(SPEECH, (440,)), Machine(batch=1)
    most = 3_000_000
    with pytest.raises(
        ModelError, match=r"partitions: 1, too few: .* limit is 3,000,000; (\d+) partitions"
    ):
        fitting(built, (440,), 1, machine=machine, memory_max=most)
    cut = fitting(built, (440,), 4, machine=machine, memory_max=most)
    assert max(f.memory_bytes for f in figures(cut, 1)) <= most
    with pytest.raises(ModelError, match="no number of partitions would do"):
        fitting(built, (440,), 4, machine=machine, memory_max=1000)

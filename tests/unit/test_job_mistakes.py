"""Every mistake of a job file at once: its line, its value and what is allowed."""

from tests.unit.test_job import problems

TEXT = """\
naem: x
data: {name: digts}
model:
  layers:
    - {kind: dens, units: 10}
    - {kind: dense, unit: -1}
    - {units: 3}
    - {kind: conv2d, filters: 0, kernel: "5"}
training:
  bacth: 64
  epochs: -1
  warmstart: {step: 3}
  sync: 1
  l2: .nan
update: {rule: adagrat, rate: 0.1}
cluster:
  heartbeat_ms: 4000
  replicas: 2
  replicas: 3
"""

LINES = {
    "naem": 1,
    "data.name": 2,
    "model.layers.0.kind": 5,
    "model.layers.1.units": 6,
    "model.layers.1.unit": 6,
    "model.layers.2.kind": 7,
    "model.layers.3.filters": 8,
    "model.layers.3.kernel": 8,
    "training.bacth": 10,
    "training.epochs": 11,
    "training.warmstart": 12,
    "training.warmstart.step": 12,
    "training.sync": 13,
    "training.l2": 14,
    "update.rule": 15,
    "cluster.suspect_ms": 16,
    "cluster.replicas": 18,
}

WORDS = {
    "naem": "did you mean name? allowed: name, seed, partitions, stages, data, model, "
    "training, update, optimizer, lbfgs, cluster",
    "data.name": '"digts"; did you mean digits?',
    "model.layers.0.kind": '"dens"; did you mean dense? allowed: conv2d, locally_connected',
    "model.layers.1.unit": "did you mean units?",
    "model.layers.1.units": "is missing",
    "model.layers.2.kind": "is missing; allowed: conv2d, locally_connected, dense",
    "model.layers.3.filters": "must be greater than or equal to 1, not 0",
    "model.layers.3.kernel": 'must be a valid integer, not "5"',
    "training.bacth": "did you mean batch?",
    "training.epochs": "must be greater than 0, not -1",
    "training.sync": "must be true or false, not 1",
    "update.rule": "did you mean adagrad?",
    "cluster.suspect_ms": "must be above heartbeat_ms (4000), not 3000",
    "cluster.replicas": "lines 18 and 19",
}


def test_every_mistake_at_once_with_place_value_and_what_is_allowed() -> None:
    found = problems(TEXT)
    assert {path: line for path, (line, _) in found.items()} == LINES
    for path, words in WORDS.items():
        assert words in found[path][1], path

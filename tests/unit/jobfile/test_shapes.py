from pathlib import Path

import pytest

from zmqps.job import JobError, load_job
from zmqps.jobfile.shapes import check_shapes

TEXT = """\
data: {name: digits}
model:
  layers:
    - {kind: conv2d, filters: 2, kernel: 9}
    - {kind: max_pool}
    - {kind: dense, units: 4}
    - {kind: mean_pool}
    - {kind: dense, units: 7}
training: {epochs: 1}
update: {rule: sgd, rate: 0.1}
"""


def mistakes(path: Path, text: str, **overrides: object) -> list[str]:
    path.write_text(text)
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    job = load_job(path, given)
    with pytest.raises(JobError) as caught:
        check_shapes(job, (8, 8, 1), 10, path, given)
    return str(caught.value).splitlines()


def test_every_layer_that_does_not_fit_is_told_with_its_line(tmp_path: Path) -> None:
    assert mistakes(tmp_path / "bad.yaml", TEXT) == [
        "bad.yaml: line 4: model.layers.0: conv2d a window of 9 x 9 does not fit into 8 x 8 pixels",
        "bad.yaml: line 7: model.layers.3: mean_pool needs an image (height, width, channels), "
        "its input is (4,)",
        "bad.yaml: line 8: model.layers.4: dense gives shape (7,), the data needs (10,): "
        "one score per class",
    ]


def test_a_wrong_last_layer_says_nothing_about_the_one_before(tmp_path: Path) -> None:
    text = TEXT.replace("kernel: 9", "kernel: 3").replace("mean_pool", "dropout, rate: 0.5")
    text = text.replace("units: 7", "units: 10, name: dense1")
    assert mistakes(tmp_path / "bad.yaml", text) == [
        "bad.yaml: line 8: model.layers.4: dense the name dense1 is taken by an earlier layer"
    ]


def test_an_override_is_blamed_on_the_command_line(tmp_path: Path) -> None:
    layers = "[{kind: dense, units: 3}]"
    (found,) = mistakes(tmp_path / "bad.yaml", TEXT, model__layers=layers)
    assert found.startswith("bad.yaml: given on the command line: model.layers.0: dense gives")


def test_layers_that_fit_are_let_pass() -> None:
    check_shapes(load_job("conv.yaml"), (28, 28, 1), 10)
    with pytest.raises(JobError, match=r"^conv: model.layers.6: dense gives shape \(10,\)"):
        check_shapes(load_job("conv.yaml"), (28, 28, 1), 11)

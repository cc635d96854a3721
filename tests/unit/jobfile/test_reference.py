from pathlib import Path

from zmqps.actors.settings import TrainingSettings
from zmqps.jobfile.reference import job_reference
from zmqps.protocol.settings import ClusterSettings

PAGE = Path(__file__).parents[3] / "docs" / "job-file.md"


def test_the_page_is_what_the_settings_say() -> None:
    hint = "renew it: python -m zmqps.jobfile.reference > docs/job-file.md"
    assert PAGE.read_text(encoding="utf-8") == job_reference(), hint


def test_every_group_and_setting_is_there() -> None:
    page = job_reference()
    for name in (*TrainingSettings.model_fields, *ClusterSettings.model_fields, "kernel", "beta1"):
        assert f"| `{name}` |" in page
    for title in ("`model.layers.N`: `kind: conv2d`", "`update`: `rule: adam`", "`cluster`"):
        assert f"## {title}\n" in page


def test_types_bounds_and_defaults_are_told() -> None:
    page = job_reference()
    assert "| `batch` | integer, at least 1 | `64` |" in page
    assert "| `accuracy` | number, above 0, at most 1 or null | null |" in page
    assert "| `rule` | `sgd` | required |" in page
    assert "| `evaluate_every` | mapping | `{epochs: 1.0}` |" in page

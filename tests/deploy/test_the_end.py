"""The training is ended and what it left is taken away, both by playbooks."""

from tests.deploy.cluster import Cluster
from tests.deploy.collected import Collected

UNITS = "systemctl list-units --plain --no-legend --state=active,failed 'zmqps-*'"
LEFT = "ls -d /opt/zmqps /etc/zmqps /var/lib/zmqps /etc/systemd/system/zmqps-* 2>/dev/null; true"


def test_stop_ends_the_run_with_a_checkpoint(training: Cluster, measured):
    play = training.play("stop")
    summary = training.summary()
    assert summary["error"] is None and summary["checkpoint"] and summary["pushes_lost"] == 0
    running = "".join(host.ssh("pgrep --uid zmqps; true") for host in training.lab.hosts())
    assert running == ""
    seen = f"{summary['steps']} steps, {summary['pushes_applied']} pushes, none lost"
    measured("`stop.yml`", seen, play.seconds)


def test_collect_brings_the_checkpoint(training: Cluster, measured):
    collected = Collected(training, "end")
    names = {path.name for path in collected.folder.rglob("*")}
    assert {"manifest.json", "summary.json", "metrics.csv"} <= names
    parts = [name for name in names if name.endswith(".safetensors")]
    assert len(parts) >= 2
    measured("`collect.yml` after it", f"{len(parts)} files of checkpoints", collected.play.seconds)


def test_reset_asks_first_and_leaves_nothing(training: Cluster, measured):
    asked = training.play("reset", "--limit", "t4", may_fail=True)
    assert asked.status != 0 and training.lab.host(4).ssh(LEFT) != ""
    play = training.play("reset", "--limit", "t4", "-e", "zmqps_reset=yes")
    assert training.lab.host(4).ssh(LEFT) == "" and training.lab.host(4).ssh(UNITS) == ""
    measured("`reset.yml`", "does nothing unless told yes; then nothing is left", play.seconds)

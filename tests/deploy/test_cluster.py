"""From bare hosts to a trained network: lint, check mode, the playbook, and once more."""

import re
import subprocess

from tests.deploy.cluster import BIN, ROOT, Cluster, timed
from tests.deploy.waiting import until

TARGET = 0.85
TRAINING_S = 180
EXPOSURE_MAX = 2.0  # of systemd-analyze security, 0 to 10


def test_the_linter_has_no_complaint(measured):
    command = [BIN / "ansible-lint", "--offline", "--strict", "--profile=production", "deploy"]
    seconds = timed(lambda: subprocess.run(command, cwd=ROOT, check=True, env=path()))
    measured("`ansible-lint`, profile production", "no complaint", seconds)


def path() -> dict[str, str]:
    return {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}


def test_check_mode_on_bare_hosts_changes_nothing(cluster: Cluster, measured):
    files = files_of(cluster)
    play = cluster.play("cluster", "--check")
    assert files_of(cluster) == files
    measured("`cluster.yml --check` on 4 bare hosts", "no failure, nothing there", play.seconds)


def files_of(cluster: Cluster) -> list[str]:
    """What a deployment would leave on the hosts."""
    places = "/opt /etc/zmqps /var/lib/zmqps /etc/systemd/system /etc/logrotate.d /etc/passwd"
    command = f"sudo find {places} -type f -printf '%p %s\\n' 2>/dev/null | sort"
    return [host.ssh(command, check=False) for host in cluster.lab.hosts()]


def test_one_playbook_brings_it_up(cluster: Cluster, measured):
    cluster.variables["zmqps_set"] = {"training.accuracy": TARGET}
    play = cluster.play("cluster")
    for host in cluster.lab.hosts():
        assert re.search(rf"{host.name} +{re.escape(host.address)} .*broker", play.said)
    assert re.search(r"warmstart|training|done|is over", play.said)
    measured("`cluster.yml` on 4 bare hosts", "healthy, shows who runs where", play.seconds)


def test_a_second_run_changes_nothing(cluster: Cluster, measured):
    play = cluster.play("cluster")
    assert play.count("changed") == dict.fromkeys(["t1", "t2", "t3", "t4"], 0)
    measured("`cluster.yml` again", "changed=0 on each host", play.seconds)


def test_units_are_hardened(cluster: Cluster, measured):
    scores = {}
    for host in cluster.lab.hosts():
        for line in host.ssh("systemctl list-unit-files --no-legend 'zmqps-*'").splitlines():
            unit = line.split()[0].replace("@.", "@0.")
            said = host.ssh(f"systemd-analyze security --no-pager {unit}")
            found = re.search(r"Overall exposure level .*: ([0-9.]+)", said)
            assert found, said
            scores[re.split(r"[@.]", unit)[0]] = float(found[1])
    assert set(scores) == {
        f"zmqps-{role}" for role in ("coordinator", "broker", "shard", "replica")
    }
    assert max(scores.values()) <= EXPOSURE_MAX
    measured("`systemd-analyze security`", f"each unit at most {max(scores.values())}", 0.0)


def test_it_trains_to_its_target(cluster: Cluster, measured):
    summary = until(cluster.summary, TRAINING_S, "the run is over", look_s=1.0)
    best = max(evaluation["accuracy"] for evaluation in summary["evaluations"])
    assert best >= TARGET and summary["reason"] == f"reached test accuracy {TARGET}"
    assert summary["error"] is None and summary["pushes_lost"] == 0
    assert len(summary["replicas"]) == 2 and len(summary["shards"]) == 2
    seen = f"test accuracy {best} after {summary['epochs']:.1f} epochs"
    measured(f"`conv.yaml` to {TARGET} across 4 hosts", seen, summary["seconds"])


def test_health_tells_of_the_end(cluster: Cluster, measured):
    play = cluster.play("health")
    assert "is over" in play.said
    measured("`health.yml` after the end", "tells the result", play.seconds)

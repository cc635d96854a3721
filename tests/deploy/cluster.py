"""A cluster that playbooks of deploy/ have brought to test hosts, as an operator sees it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from tests.deploy.host import Host
from tests.deploy.inventory import Groups, write_inventory
from tests.deploy.lab import Lab
from tests.deploy.waiting import until

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PLAY_S = 850
ZMQPS = "sudo runuser -u zmqps -- /opt/zmqps/current/bin/zmqps"
RUNS = "/var/lib/zmqps/runs"
RECAP = re.compile(r"^(\S+) +: (ok=.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Play:
    """What a run of ansible-playbook said. `counts`: of each host, such as changed."""

    status: int
    said: str
    seconds: float
    counts: Mapping[str, Mapping[str, int]]

    def count(self, what: str) -> dict[str, int]:
        return {host: counts[what] for host, counts in self.counts.items()}


class Cluster:
    """The hosts of `groups` in `lab`; `variables` are those of all hosts."""

    def __init__(self, lab: Lab, groups: Groups, **variables: Any) -> None:
        self.lab = lab
        self.groups = groups
        self.variables = variables

    @property
    def first(self) -> Host:
        """Whom to ask: the host of the coordinator, or of the first agent."""
        return (self.groups.get("coordinator") or self.groups["agents"])[0]

    @property
    def run_folder(self) -> str:
        """The run's folder on each host."""
        return f"{RUNS}/{self.variables['zmqps_run']}"

    def play(self, name: str, *words: str, may_fail: bool = False) -> Play:
        """Run deploy/NAME.yml with these further words. Fails unless it ended well."""
        inventory = write_inventory(self.lab, self.groups, **self.variables)
        playbook = f"deploy/{name}.yml"
        command = [BIN / "ansible-playbook", "-i", inventory, playbook, *words]
        environment = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.lab.folder / "ansible"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.lab.folder / "control"),
        }
        start = monotonic()
        done = subprocess.run(
            [str(word) for word in command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PLAY_S,
            check=False,
        )
        counts = {host: pairs(text) for host, text in RECAP.findall(done.stdout)}
        play = Play(done.returncode, done.stdout, monotonic() - start, counts)
        assert may_fail or play.status == 0, f"{playbook} {' '.join(words)}:\n{tail(play.said)}"
        return play

    # --- asking

    def status(self) -> dict[str, Any]:
        """`zmqps status --json`, asked on the first host; {} when there is no answer."""
        words = "status --cluster /etc/zmqps/cluster.yaml --json"
        said = self.first.ssh(f"{ZMQPS} {words} 2>/dev/null", check=False)
        return json.loads(said) if said.strip() else {}

    def summary(self) -> dict[str, Any]:
        """What came of the run; {} while it goes on."""
        said = self.first.ssh(f"sudo cat {self.run_folder}/summary.json 2>/dev/null", check=False)
        return json.loads(said) if said.strip() else {}

    def steps(self) -> int:
        """How many steps the replicas have done; 0 when nobody tells."""
        return self.status().get("progress", {}).get("steps", 0)

    def trains_on(self, by: int = 20, seconds: float = 60.0) -> None:
        """Wait until `by` more steps are done."""
        until(self.steps, seconds, "the coordinator tells its steps", look_s=0.5)
        goal = self.steps() + by
        until(lambda: self.steps() >= goal, seconds, f"{goal} steps are done", look_s=0.5)

    def is_whole(self) -> bool:
        """Whether all that the inventory names take part, each copy in step on another host."""
        status = self.status()
        alive = [member["role"] for member in status.get("members", []) if is_alive(member)]
        each = {
            "broker": len(self.groups["brokers"]),
            "shard": len(self.groups["shards"]) * self.variables.get("zmqps_shards_per_host", 1),
            "replica": len(self.groups["replicas"]),
        }
        if any(alive.count(role) < count for role, count in each.items()):
            return False
        if self.variables.get("zmqps_shard_copies", 1) == 1:
            return True
        host = {member["name"]: member["host"] for member in status["members"]}
        return all(
            slot["in_step"] and host.get(slot["primary"]) != host.get(slot["follower"])
            for slot in status["routes"]["slots"]
        )

    def becomes_whole(self, seconds: float = 90.0) -> float:
        """Wait until it is whole; the answer is how long that took."""
        start = monotonic()
        until(self.is_whole, seconds, f"all take part in {summary_of(self.status())}", look_s=0.5)
        return monotonic() - start


def is_alive(member: Mapping[str, Any]) -> bool:
    return member["state"] == "alive"


def summary_of(status: Mapping[str, Any]) -> str:
    members = [f"{m['name']} {m['state']}" for m in status.get("members", [])]
    return f"{status.get('state')}: {', '.join(members)}"


def pairs(text: str) -> dict[str, int]:
    """`ok=3 changed=0` -> {'ok': 3, 'changed': 0}."""
    return {name: int(count) for name, count in (word.split("=") for word in text.split())}


def tail(text: str, lines: int = 60) -> str:
    return "\n".join(text.splitlines()[-lines:])


def timed(action: Callable[[], Any]) -> float:
    """How many seconds the action took."""
    start = monotonic()
    action()
    return monotonic() - start

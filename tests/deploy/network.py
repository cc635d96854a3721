"""The cables: a bridge on this machine, a network namespace and a veth pair for each host.

What goes wrong between hosts is done in the bridge with nft (loss, partitions) or by a relay in the
cable (delay, see wan.py, since netem is not in every kernel). Both spare the ssh that comes from
this machine itself, but for a cable that is pulled.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.waiting import until

WAN = Path(__file__).with_name("wan.py")


def run(*words: object, given: str | None = None, check: bool = True) -> str:
    """Run a command; its output. What it says on standard error comes with the exception."""
    command = [str(word) for word in words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def leave_running(*words: object, told: Path) -> None:
    """Start a process that goes on when this one ends; what it says goes to the file `told`."""
    with told.open("a") as out:
        command = ["setsid", "--fork", *(str(word) for word in words)]
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", check=True
        )


@dataclass(frozen=True)
class Cable:
    """Host `name` on the bridge. Its end of the cable is eth0, in the namespace of its name."""

    bridge: str
    name: str
    address: str

    @property
    def veth(self) -> str:
        """This machine's end."""
        return f"v-{self.name}"

    @property
    def tap(self) -> str:
        """The port of the bridge while a relay delays this cable."""
        return f"w-{self.name}"

    @property
    def ports(self) -> str:
        return f'{{ "{self.veth}", "{self.tap}" }}'

    def lay(self, gateway: str) -> None:
        """Make namespace and cable, unless they are there."""
        if not Path("/run/netns", self.name).exists():
            run("ip", "netns", "add", self.name)
        if not Path("/sys/class/net", self.veth).exists():
            inside = ("ip", "-n", self.name)
            run(
                "ip",
                "link",
                "add",
                self.veth,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                self.name,
            )
            run("ip", "link", "set", self.veth, "master", self.bridge, "up")
            run(*inside, "address", "add", f"{self.address}/24", "dev", "eth0")
            run(*inside, "link", "set", "eth0", "up")
            run(*inside, "link", "set", "lo", "up")
            run(*inside, "route", "replace", "default", "via", gateway)

    def plug(self, plugged: bool) -> None:
        """Pull the cable, or put it back."""
        run("ip", "link", "set", self.veth, "up" if plugged else "down")

    def lose(self, percent: int) -> None:
        """Drop so many of the packets between this host and others; 0 ends it."""
        rules = [
            f"{end} {self.ports} numgen random mod 100 < {percent} drop"
            for end in ("iifname", "oifname")
        ]
        table(f"loss_{self.name}", rules if percent else [])

    def part(self, other: "Cable", parted: bool) -> None:
        """Let nothing through between these two hosts, or everything again."""
        rules = [
            f"iifname {one.ports} oifname {two.ports} drop"
            for one, two in ((self, other), (other, self))
        ]
        table("part_" + "_".join(sorted((self.name, other.name))), rules if parted else [])

    def delay(self, ms: float, jitter_ms: float = 0.0) -> None:
        """Delay each packet, each way; 0 ends it."""
        self._end_relay()
        if ms:
            words = (sys.executable, WAN, self.bridge, self.veth, self.tap, ms, jitter_ms)
            leave_running(*words, told=self._relay)
            until(self._relay_number, 3, f"the relay of {self.name} stands: see {self._relay}")

    def remove(self) -> None:
        """Take all of it away; nothing need be there."""
        self._end_relay()
        self.lose(0)
        run("ip", "netns", "delete", self.name, check=False)
        run("ip", "link", "delete", self.veth, check=False)

    @property
    def _relay(self) -> Path:
        """What the relay has said."""
        return Path(f"/run/{self.tap}.log")

    def _relay_number(self) -> int | None:
        """The process of the relay, None as long as there is none."""
        said = self._relay.read_text() if self._relay.exists() else ""
        return int(said.split()[1]) if said.startswith("ready") else None

    def _end_relay(self) -> None:
        process = Path("/proc", str(self._relay_number() or "none"), "cmdline")
        if process.exists() and str(WAN).encode() in process.read_bytes():
            os.kill(int(process.parent.name), signal.SIGTERM)
            tap = Path("/sys/class/net", self.tap)
            until(lambda: not tap.exists(), 3, f"the relay of {self.name} has ended")
        self._relay.unlink(missing_ok=True)


def table(name: str, rules: list[str]) -> None:
    """Replace this table of the bridge by one with these rules; without rules, remove it."""
    lines = [f"table bridge {name}", f"delete table bridge {name}"]
    if rules:
        chain = "type filter hook forward priority 0; policy accept;"
        lines += [f"table bridge {name} {{", "chain f {", chain, *rules, "}", "}"]
    run("nft", "-f", "-", given="\n".join(lines) + "\n")


def bridge(name: str, address: str) -> None:
    """Make the bridge, which is this machine's own place among the hosts."""
    if not Path("/sys/class/net", name).exists():
        run("ip", "link", "add", name, "type", "bridge")
    run("ip", "address", "replace", f"{address}/24", "dev", name)
    run("ip", "link", "set", name, "up")


def remove_bridge(name: str, hosts: str) -> None:
    """Remove the bridge, and the tables about hosts whose names begin with `hosts`."""
    for item in json.loads(run("nft", "--json", "list", "tables"))["nftables"]:
        found = item.get("table", {})
        if found.get("family") == "bridge" and found["name"].startswith(f"part_{hosts}"):
            table(found["name"], [])
    run("ip", "link", "delete", name, check=False)

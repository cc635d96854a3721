"""Some hosts on one bridge, and what one needs to reach them: a key, an ssh configuration.

Each lab has a letter that begins its hosts' names, and a network of its own, so that the hosts that
a person has up and those of a test do not meet.
"""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.deploy import network
from tests.deploy.base import USER, base_tree, only_one
from tests.deploy.cgroup import UNIFIED
from tests.deploy.host import Host

DISKS = Path("/var/tmp/zmqps-tests")
NETWORKS = {"n": "10.77.0", "d": "10.78.0", "t": "10.79.0"}
HOSTS_MAX = 9
NEEDS = {
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "nft": "nftables",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "unshare": "util-linux",
    "sysctl": "procps",
}


def missing() -> list[str]:
    """The packages of Debian that this machine lacks for test hosts."""
    return sorted(package for name, package in NEEDS.items() if not shutil.which(name))


def why_not() -> str | None:
    """What keeps hosts from running on this machine, None if nothing does."""
    if os.geteuid():
        return "test hosts are made by root only"
    if lacking := missing():
        return f"test hosts need these packages of Debian: {' '.join(lacking)}"
    if not (UNIFIED / "cgroup.controllers").exists():
        return f"test hosts need control groups of version 2, which are not at {UNIFIED}"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "test hosts need overlay file systems, which this kernel has not"
    try:
        network.run("unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "true")
        network.run("nft", "list", "tables")
    except RuntimeError as error:
        return f"test hosts need namespaces and nft: {error}"
    return None


@dataclass(frozen=True)
class Lab:
    """The hosts whose names begin with `letter`."""

    letter: str

    @property
    def folder(self) -> Path:
        return DISKS / self.letter

    @property
    def bridge(self) -> str:
        return f"zmqps-{self.letter}"

    @property
    def gateway(self) -> str:
        return f"{NETWORKS[self.letter]}.1"

    @property
    def key(self) -> Path:
        return self.folder / "key"

    @property
    def ssh_config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def host(self, number: int) -> Host:
        """The host of this number, from 1; it need not exist."""
        name = f"{self.letter}{number}"
        cable = network.Cable(self.bridge, name, f"{NETWORKS[self.letter]}.{10 + number}")
        return Host(name, cable, self.folder / name, base_tree(), self.ssh_config)

    def hosts(self) -> list[Host]:
        """Those that were made."""
        numbers = range(1, HOSTS_MAX + 1)
        return [self.host(n) for n in numbers if (self.folder / f"{self.letter}{n}").exists()]

    def up(self, count: int) -> list[Host]:
        """Have hosts 1 to `count` up and ready, whatever was there; more stay as they are."""
        hosts = [self.host(number) for number in range(1, count + 1)]
        with only_one(DISKS / "lock"):
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self.key.exists():
                network.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key)
            network.bridge(self.bridge, self.gateway)
            for host in hosts:
                host.cable.lay(self.gateway)
                self.make(host)
                host.start()
            self.write_names()
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(Host.wait, hosts))
        return hosts

    def make(self, host: Host) -> None:
        numbers = range(1, HOSTS_MAX + 1)
        names = "".join(f"{self.host(n).address} {self.letter}{n}\n" for n in numbers)
        host.make(self.key.with_suffix(".pub").read_text(), names)

    def replace(self, host: Host) -> None:
        """Another machine takes the place, name and address of this one; it knows nothing."""
        host.cgroup.kill()
        shutil.rmtree(host.folder)
        self.make(host)
        host.start()
        self.write_names()
        host.wait()

    def write_names(self) -> None:
        """For ssh: who the hosts are, and by which keys one knows them."""
        hosts = self.hosts()
        lines = [
            f"Host {self.letter}* {NETWORKS[self.letter]}.*",
            f"  User {USER}",
            f"  IdentityFile {self.key}",
            "  IdentitiesOnly yes",
            f"  UserKnownHostsFile {self.known_hosts}",
            "  StrictHostKeyChecking yes",
            "  ConnectTimeout 3",
        ]
        for host in hosts:
            lines += [f"Host {host.name}", f"  HostName {host.address}"]
        self.ssh_config.write_text("\n".join(lines) + "\n")
        self.known_hosts.write_text("".join(host.host_key() for host in hosts))

    def down(self) -> None:
        """Nothing is left of this lab, whatever state it is in."""
        with only_one(DISKS / "lock"):
            for host in self.hosts():
                host.remove()
            if Path("/sys/class/net", self.bridge).exists():
                network.remove_bridge(self.bridge, self.letter)
            shutil.rmtree(self.folder, ignore_errors=True)

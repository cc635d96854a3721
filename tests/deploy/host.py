"""One test host: systemd in a tree of its own, on a cable of its own, reached by ssh.

`SIGRTMIN+3` is systemd's signal for an orderly halt. A host's files are what its overlay holds
above the base tree; without them the next start is a new machine with a new host key.
"""

import os
import shutil
import signal
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.base import USER
from tests.deploy.cgroup import Cgroup
from tests.deploy.network import Cable, leave_running, run
from tests.deploy.waiting import until

BOOT = Path(__file__).with_name("boot")
BOOT_S, HALT_S = 30.0, 30.0
UNITS_CLOCK = "/etc/systemd/system/zmqps-.service.d/clock.conf"
SUDO_CLOCK = "/etc/sudoers.d/clock"
MONOTONIC = "FAKETIME_DONT_FAKE_MONOTONIC=1"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


@dataclass(frozen=True)
class Host:
    """`folder` holds its files, `ssh_config` of the lab its name, address and key."""

    name: str
    cable: Cable
    folder: Path
    base: Path
    ssh_config: Path

    @property
    def address(self) -> str:
        return self.cable.address

    @property
    def cgroup(self) -> Cgroup:
        return Cgroup(f"zmqps-{self.name}")

    @property
    def upper(self) -> Path:
        """What this host has and the base has not."""
        return self.folder / "upper"

    # --- a life

    def make(self, public_key: str, names: str) -> None:
        """Make it a machine of its own, unless it is one; `names` is for /etc/hosts."""
        if self.upper.exists():
            return
        growing = self.folder / "growing"
        shutil.rmtree(growing, ignore_errors=True)
        for name in ("growing/etc/ssh", f"growing/home/{USER}/.ssh", "work", "root"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (growing / "etc/hostname").write_text(f"{self.name}\n")
        (growing / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")
        (growing / "etc/hosts").write_text(f"127.0.0.1 localhost\n{names}")
        key = growing / "etc/ssh/ssh_host_ed25519_key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", key)
        home = growing / "home" / USER
        (home / ".ssh/authorized_keys").write_text(public_key)
        owner = (self.base / "home" / USER).stat()
        for path in (home, *home.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
        (home / ".ssh").chmod(0o700)
        growing.rename(self.upper)

    def host_key(self) -> str:
        """The line of known_hosts about this machine."""
        kind, key, _ = (self.upper / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
        return f"{self.address},{self.name} {kind} {key}\n"

    def start(self) -> None:
        """Switch it on, unless it is up; `wait` tells when it can be used."""
        if self.cgroup.is_populated():
            return
        self.cable.plug(True)
        words = (BOOT, self.name, self.folder, self.base, *self.cgroup.make())
        apart = ("unshare", "--mount", "--propagation", "private")
        leave_running(*apart, *words, told=self.folder / "console")

    def wait(self) -> None:
        """Until it has booted and answers by ssh."""
        try:
            until(self._has_booted, BOOT_S, f"{self.name} has booted")
        except TimeoutError as error:
            console = (self.folder / "console").read_text(errors="replace")
            raise RuntimeError(f"{error}; its console:\n{console[-2000:]}") from error

    def _has_booted(self) -> bool:
        done = self.ssh("systemctl is-system-running --wait", check=False)
        return done.strip() in ("running", "degraded")

    def is_up(self) -> bool:
        return self.cgroup.is_populated()

    def ssh(self, command: str, check: bool = True) -> str:
        """Run a shell command on the host as the user who may sudo; its output."""
        return run("ssh", "-F", self.ssh_config, self.name, command, check=check)

    def stop(self) -> None:
        """An orderly halt."""
        if init := self.cgroup.init():
            os.kill(init, signal.SIGRTMIN + 3)
            until(lambda: not self.is_up(), HALT_S, f"{self.name} has halted")

    def reboot(self) -> None:
        """An orderly reboot, from inside; over when it has booted again."""
        first = self.cgroup.init()
        self.ssh("sudo systemctl --no-block reboot", check=False)
        until(lambda: self.cgroup.init() not in (None, first), HALT_S, f"{self.name} reboots")
        self.wait()

    def remove(self) -> None:
        """Nothing is left of it, whatever state it is in."""
        self.thaw()
        self.cgroup.kill()
        self.cable.remove()
        self.cgroup.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- faults

    def kill(self) -> None:
        """All its processes end at once; the kernel still closes their connections."""
        self.cgroup.kill()

    def power_off(self) -> None:
        """As kill, but others see silence instead of closed connections."""
        self.cut()
        self.kill()

    def cut(self) -> None:
        """Pull the cable."""
        self.cable.plug(False)

    def heal(self) -> None:
        """Put the cable back."""
        self.cable.plug(True)

    def freeze(self) -> None:
        """Nothing on it runs, though its kernel still answers pings and takes in packets."""
        self.cgroup.freeze(True)

    def thaw(self) -> None:
        self.cgroup.freeze(False)

    def set_clock_off(self, seconds: float) -> None:
        """Let zmqps, from its next start, and who logs in see another time of day; 0 ends it.

        The machine's clock is one for all hosts, so a library does it. Clocks that only count
        go on as they are, since their offsets mean nothing on a real host.
        """
        if seconds:
            lines = [f"LD_PRELOAD={FAKETIME}", f"FAKETIME={seconds:+g}s", MONOTONIC]
            self.write("/etc/environment", "".join(f"{line}\n" for line in lines))
            self.write(UNITS_CLOCK, "[Service]\nEnvironmentFile=/etc/environment\n")
            self.write(SUDO_CLOCK, "Defaults env_file=/etc/environment\n")
        else:
            self.ssh(f"sudo rm -f /etc/environment {UNITS_CLOCK} {SUDO_CLOCK}")
        self.ssh("sudo systemctl daemon-reload")

    def write(self, path: str, text: str) -> None:
        """Write a file as root, with the folders above it."""
        words = f"sudo mkdir -p {path.rpartition('/')[0]} && sudo tee {path} >/dev/null"
        run("ssh", "-F", self.ssh_config, self.name, words, given=text)

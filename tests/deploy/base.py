"""The Debian tree that all test hosts share: made once by debootstrap, kept, and never written to.

A host lays a folder of its own over it (see host.py), so that a new machine costs a few files.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUITE = "bookworm"
CACHE = Path(os.environ.get("ZMQPS_TESTS_CACHE", "/var/cache/zmqps-tests"))
USER = "deploy"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "libpam-systemd", "openssh-server", "sudo"),
    *("python3", "python3-venv", "python3-apt", "python3-packaging"),  # what Ansible needs
    *("iproute2", "iputils-ping", "netbase", "ca-certificates", "procps"),
    *("logrotate", "nftables"),  # installed by default on Debian, but not by this variant
    "libfaketime",  # the one thing of a test: a clock that is off (see host.py)
)
MASKED = (
    *("systemd-networkd-wait-online", "systemd-timesyncd", "apt-daily.timer"),
    *("apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer"),
)
SSHD = "PasswordAuthentication no\nPermitRootLogin no\nUseDNS no\nMaxStartups 100\n"
RECIPE = hashlib.sha256(repr((SUITE, USER, PACKAGES, MASKED, SSHD)).encode()).hexdigest()[:12]


def base_tree() -> Path:
    """The tree's folder; made now if it is not there (a minute or two)."""
    folder = CACHE / f"base-{RECIPE}"
    with only_one(CACHE / "lock"):
        if not folder.exists():
            for old in CACHE.glob("base-*"):
                shutil.rmtree(old)
            growing = CACHE / "base-growing"
            debootstrap(growing)
            furnish(growing)
            growing.rename(folder)
    return folder


def debootstrap(folder: Path) -> None:
    log = CACHE / "debootstrap.log"
    options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
    with log.open("w") as out:
        command = ["debootstrap", *options, SUITE, str(folder), mirror()]
        done = subprocess.run(command, stdout=out, stderr=out, check=False)
    if done.returncode:
        raise RuntimeError(f"debootstrap failed: {log}:\n{log.read_text()[-2000:]}")


def mirror() -> str:
    """The address of the Debian mirror that this machine uses itself."""
    command = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(SUITE) $(REPO_URI)"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in told.splitlines():
        origin, suite, address = line.split(" ", 2)
        if origin == "Debian" and "security" not in suite and "updates" not in suite:
            return address
    raise RuntimeError("no Debian mirror is known to apt-get: run apt-get update first")


def furnish(tree: Path) -> None:
    """A user who may sudo, ssh by key only, no keys or identity of a machine."""
    for name in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(tree / name, ignore_errors=True)
    for key in tree.glob("etc/ssh/ssh_host_*"):
        key.unlink()
    (tree / "etc/machine-id").write_text("")
    (tree / "etc/default/locale").write_text("LANG=C.UTF-8\n")
    (tree / "etc/ssh/sshd_config.d/10-test.conf").write_text(SSHD)
    subprocess.run(["chroot", tree, "useradd", "-m", "-s", "/bin/bash", USER], check=True)
    sudoers = tree / "etc/sudoers.d" / USER
    sudoers.write_text(f"{USER} ALL=(ALL) NOPASSWD:ALL\n")
    sudoers.chmod(0o440)
    subprocess.run(["chroot", tree, "systemctl", "-q", "mask", *MASKED], check=True)


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold this lock; wait for whoever has it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Where a process of a cluster is: whom it calls, what it binds, how others reach it.

Addresses are told by options, then by ZMQPS_* variables, then by a cluster file; what nobody tells
is on this machine's loopback. Only the coordinator's address has to be known: the others bind ports
that the system gives, on the interface that faces the coordinator.

A cluster file is YAML, the same on every host:

    coordinator: 10.0.0.1:7077
    run_dir: /var/lib/zmqps          # where each host's logs go; otherwise into the run's folder
    hosts:                           # by host name, for those that need it
      alpha: {bind: "10.0.0.1:7100", advertise: alpha.lan}
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zmqps.jobfile.text import JobError, read_text
from zmqps.runtime.addresses import (
    FORMS,
    LOOPBACK,
    PORT,
    WILDCARDS,
    PlaceError,
    Told,
    is_loopback,
    read_endpoint,
    split_host,
)
from zmqps.runtime.interfaces import facing
from zmqps.runtime.security_keys import split_name

VARIABLES: Final = tuple(
    f"ZMQPS_{name}"
    for name in ("COORDINATOR", "BIND", "ADVERTISE", "RUN_DIR", "CLUSTER", "KEYS", "INSECURE")
)
COMMON: Final = ("run_dir", "keys", "insecure")
"""What a cluster file may tell for all hosts, or for one."""


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses of one process.

    `coordinator` is the endpoint to call; `bind` the endpoints to bind (port 0: the system's);
    `advertise` the host under which others reach what is bound (None: as bound); `run_dir` where
    this process's logs go (None: where the coordinator says). `keys` is its key folder, or a
    key file in one; with `insecure` it may do without where strangers can reach it.
    """

    coordinator: str
    bind: tuple[str, ...]
    advertise: str | None = None
    run_dir: Path | None = None
    keys: Path | None = None
    insecure: bool = False

    @property
    def exposed(self) -> tuple[str, ...]:
        """The endpoints to bind where strangers can do as they please, for want of keys."""
        return () if self.keys else tuple(e for e in self.bind if not is_loopback(e))


def find_place(
    *,
    is_coordinator: bool = False,
    options: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    host: str | None = None,
    facing: Callable[[str], str] = facing,
) -> Place:
    """Put a place together. Raise PlaceError for what cannot be one.

    `options` holds what the command line told: coordinator, bind (a list), advertise, run_dir,
    keys, insecure, cluster (the file). `host` is this machine's name; `facing` returns this
    machine's address on the way to a host.
    """
    told = _told(options or {}, environ, host or os.uname().nodename)
    default = Told("default", f"{LOOPBACK}:{PORT}")
    at = told.get("coordinator", default)
    coordinator = read_endpoint(at, PORT, wildcard=is_coordinator)
    if is_coordinator and "bind" not in told:
        bind: tuple[str, ...] = (coordinator,)
    elif "bind" in told:
        port = PORT if is_coordinator else 0
        bind = tuple(read_endpoint(one, port, wildcard=True) for one in _each(told["bind"]))
    else:
        bind = (_beside(coordinator, at, facing),)
    advertise = _advertise(told.get("advertise"), bind, host or os.uname().nodename)
    run_dir = _folder(told.get("run_dir"))
    keys = Path(str(told["keys"].value)).expanduser() if "keys" in told else None
    insecure = _truth(told.get("insecure"))
    return Place(coordinator, bind, advertise, run_dir, keys, insecure)


def refuse_exposed(place: Place) -> None:
    """Raise PlaceError when strangers could reach what is bound, and nobody said that they may."""
    if place.exposed and not place.insecure:
        raise PlaceError(
            "--bind",
            ", ".join(place.exposed),
            "without keys anybody who reaches it can read and change everything; name a key "
            "folder with --keys (zmqps keys makes one), or say --insecure",
        )


# --- What is told, by whom ------------------------------------------------------------------------


def _told(options: Mapping[str, Any], environ: Mapping[str, str], host: str) -> dict[str, Told]:
    """Return each value that somebody told, from whom it counts."""
    told = {
        name: Told("--" + name.replace("_", "-"), value)
        for name, value in options.items()
        if value not in (None, (), "", False)
    }
    for variable in VARIABLES:
        if environ.get(variable):
            name = variable.removeprefix("ZMQPS_").lower()
            told.setdefault(name, Told(variable, environ[variable]))
    if "cluster" in told:
        for name, value in _read_cluster(told["cluster"], host).items():
            told.setdefault(name, value)
    return told


def _read_cluster(told: Told, host: str) -> dict[str, Told]:
    """Return what a cluster file tells the processes of `host`."""
    try:
        document = read_text(Path(told.value).read_bytes(), str(told.value))
    except OSError as error:
        raise PlaceError(told.source, told.value, f"cannot be read: {error.strerror}") from None
    except JobError as error:
        raise PlaceError(told.source, told.value, str(error.problems[0])) from None
    for problem in document.faults.values():
        raise PlaceError(told.source, told.value, str(problem))
    file = str(told.value)
    values = _mapping(file, document.values, ("coordinator", *COMMON, "hosts"))
    hosts = _mapping(f"{file}: hosts", values.pop("hosts", {}), None)
    found = {name: Told(f"{file}: {name}", value) for name, value in values.items()}
    for name, about in hosts.items():
        place = f"{file}: hosts.{name}"
        for key, value in _mapping(place, about, ("bind", "advertise", *COMMON)).items():
            if name in (host, host.partition(".")[0]):
                found[key] = Told(f"{place}.{key}", value)
    return {name: value for name, value in found.items() if value.value is not None}


def _mapping(source: str, value: object, names: Sequence[str] | None) -> dict[str, Any]:
    """Return a mapping of the cluster file, if its keys are among `names`."""
    allowed = f"allowed: {', '.join(names)}" if names else "allowed: host names"
    if not isinstance(value, dict):
        raise PlaceError(source, value, f"is no mapping; {allowed}")
    for key in value:
        if names and key not in names:
            raise PlaceError(source, key, f"is no setting; {allowed}")
    return dict(value)


# --- What follows from it -------------------------------------------------------------------------


def _each(told: Told) -> list[Told]:
    """Return the addresses to bind one by one; a text may hold several, with commas between."""
    values = told.value.split(",") if isinstance(told.value, str) else told.value
    if not isinstance(values, list | tuple) or not values:
        raise PlaceError(told.source, values, f"is no address; {FORMS}")
    return [Told(told.source, value) for value in values]


def _beside(coordinator: str, told: Told, facing: Callable[[str], str]) -> str:
    """Return what to bind so that those who reach the coordinator can reach this process too."""
    host = split_name(coordinator)[1].removeprefix("tcp://").rpartition(":")[0]
    if coordinator.startswith("ipc://") or host in (LOOPBACK, "localhost"):
        return f"tcp://{LOOPBACK}:0"
    try:
        return f"tcp://{facing(host)}:0"
    except OSError as error:
        reason = error.strerror or error
        raise PlaceError(
            told.source, told.value, f"cannot be reached from here: {reason}"
        ) from None


def _advertise(told: Told | None, bind: tuple[str, ...], host: str) -> str | None:
    if told is None:
        every = any(one.removeprefix("tcp://").rpartition(":")[0] in WILDCARDS for one in bind)
        return host if every else None
    name, port = split_host(told, told.value.strip() if isinstance(told.value, str) else "")
    if port is not None or name in WILDCARDS:
        raise PlaceError(told.source, told.value, "needs a host name or address without a port")
    return name


def _truth(told: Told | None) -> bool:
    if told is None:
        return False
    if told.value in (True, "1", "true"):
        return True
    if told.value in (False, "0", "false"):
        return False
    raise PlaceError(told.source, told.value, "allowed: true, false")


def _folder(told: Told | None) -> Path | None:
    if told is None:
        return None
    path = Path(str(told.value)).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise PlaceError(told.source, told.value, "is not a folder")
    return path

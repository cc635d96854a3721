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

import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zmqps.jobfile.text import JobError, read_text
from zmqps.runtime.interfaces import facing

PORT: Final = 7077
LOOPBACK: Final = "127.0.0.1"
WILDCARDS: Final = ("*", "0.0.0.0", "[::]")
IPC_BYTES_MAX: Final = 107  # of a path, as sockets have it

COORDINATOR, BIND, ADVERTISE, RUN_DIR, CLUSTER = (
    f"ZMQPS_{name}" for name in ("COORDINATOR", "BIND", "ADVERTISE", "RUN_DIR", "CLUSTER")
)
VARIABLES: Final = (COORDINATOR, BIND, ADVERTISE, RUN_DIR, CLUSTER)

FORMS: Final = "allowed: HOST, HOST:PORT, tcp://HOST:PORT (an IPv6 address in brackets), ipc://PATH"
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?")


class PlaceError(ValueError):
    """An address or folder that cannot be used: who told it, what it is, what is allowed."""

    def __init__(self, source: str, value: object, message: str) -> None:
        super().__init__(f"{source}: {str(value)[:200]!r}: {message}")


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses of one process.

    `coordinator` is the endpoint to call; `bind` the endpoints to bind (port 0: the system's);
    `advertise` the host under which others reach what is bound (None: as bound); `run_dir` where
    this process's logs go (None: where the coordinator says).
    """

    coordinator: str
    bind: tuple[str, ...]
    advertise: str | None = None
    run_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """A value and who told it, for messages."""

    source: str
    value: Any


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
    cluster (the file). `host` is this machine's name; `facing` returns this machine's address on
    the way to a host.
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
    return Place(coordinator, bind, advertise, run_dir)


def read_endpoint(told: Told, port: int, *, wildcard: bool = False) -> str:
    """Return the endpoint that a friendly address means; `port` is for those that name none.

    With `wildcard` it is one to bind: `*` and port 0 are allowed.
    """
    text = told.value.strip() if isinstance(told.value, str) else None
    if not text:
        raise PlaceError(told.source, told.value, f"is no address; {FORMS}")
    if text.startswith("ipc://"):
        return _ipc(told, text)
    if "://" in text.removeprefix("tcp://"):
        raise PlaceError(told.source, text, f"has an unknown transport; {FORMS}")
    host, number = _split(told, text.removeprefix("tcp://"))
    if number is None:
        number = port
    if not (0 if wildcard else 1) <= number < 1 << 16:
        low = 0 if wildcard else 1
        raise PlaceError(told.source, text, f"port {number}, allowed: {low} to 65535")
    if host in WILDCARDS and not wildcard:
        raise PlaceError(told.source, text, "is no address to call; name one of that host")
    return f"tcp://{host}:{number}"


def _split(told: Told, text: str) -> tuple[str, int | None]:
    """Return host and port of HOST, HOST:PORT, [IPv6] or [IPv6]:PORT; the port may be None."""
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::(\d{1,9}))?", text)
    plain = re.fullmatch(r"([^:\[\]]*)(?::(\d{1,9}))?", text)
    if bracketed or text.count(":") > 1:  # several colons and no brackets: a bare IPv6 address
        host, port = bracketed.groups() if bracketed else (text, None)
        try:
            name = f"[{ipaddress.IPv6Address(host)}]"
        except ValueError:
            raise PlaceError(told.source, text, f"is no IPv6 address; {FORMS}") from None
    elif plain and (plain[1] == "*" or _HOST.fullmatch(plain[1])):
        name, port = plain.groups()
        _check_ipv4(told, text, name)
    else:
        raise PlaceError(told.source, text, f"is no address; {FORMS}")
    return name, None if port is None else int(port)


def _check_ipv4(told: Told, text: str, host: str) -> None:
    """Refuse 10.0.0.256 and the like, which would pass as host names."""
    if re.fullmatch(r"[\d.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise PlaceError(told.source, text, "is no IPv4 address") from None


def _ipc(told: Told, text: str) -> str:
    path = text.removeprefix("ipc://")
    if not Path(path).is_absolute() or len(os.fsencode(path)) > IPC_BYTES_MAX:
        message = f"needs an absolute path of at most {IPC_BYTES_MAX} bytes, as in ipc:///run/z"
        raise PlaceError(told.source, text, message)
    return text


# --- What is told, by whom ------------------------------------------------------------------------


def _told(options: Mapping[str, Any], environ: Mapping[str, str], host: str) -> dict[str, Told]:
    """Return each value that somebody told, from whom it counts."""
    told = {
        name: Told("--" + name.replace("_", "-"), value)
        for name, value in options.items()
        if value not in (None, (), "")
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
    values = _mapping(file, document.values, ("coordinator", "run_dir", "hosts"))
    hosts = _mapping(f"{file}: hosts", values.pop("hosts", {}), None)
    found = {name: Told(f"{file}: {name}", value) for name, value in values.items()}
    for name, about in hosts.items():
        place = f"{file}: hosts.{name}"
        for key, value in _mapping(place, about, ("bind", "advertise", "run_dir")).items():
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
    host = coordinator.removeprefix("tcp://").rpartition(":")[0]
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
    name, port = _split(told, told.value.strip() if isinstance(told.value, str) else "")
    if port is not None or name in WILDCARDS:
        raise PlaceError(told.source, told.value, "needs a host name or address without a port")
    return name


def _folder(told: Told | None) -> Path | None:
    if told is None:
        return None
    path = Path(str(told.value)).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise PlaceError(told.source, told.value, "is not a folder")
    return path

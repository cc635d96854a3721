"""Addresses as people write them: HOST, HOST:PORT, tcp://HOST:PORT, [IPv6]:PORT, ipc://PATH."""

import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PORT: Final = 7077
LOOPBACK: Final = "127.0.0.1"
WILDCARDS: Final = ("*", "0.0.0.0", "[::]")
IPC_BYTES_MAX: Final = 107  # of a path, as sockets have it

FORMS: Final = "allowed: HOST, HOST:PORT, tcp://HOST:PORT (an IPv6 address in brackets), ipc://PATH"
_ACTOR: Final = re.compile(r"[a-z]+(-[A-Za-z0-9_.-]{1,40})?")  # as in security_keys
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?\.?")


class PlaceError(ValueError):
    """An address or folder that cannot be used: who told it, what it is, what is allowed."""

    def __init__(self, source: str, value: object, message: str) -> None:
        super().__init__(f"{source}: {str(value)[:200]!r}: {message}")


@dataclass(frozen=True, slots=True)
class Told:
    """A value and who told it, for messages."""

    source: str
    value: Any


def read_endpoint(told: Told, port: int, *, wildcard: bool = False) -> str:
    """Return the endpoint that a friendly address means; `port` is for those that name none.

    With `wildcard` it is one to bind: `*` and port 0 are allowed. One to call may begin with the
    name of the key that is expected there: NAME@HOST:PORT.
    """
    text = told.value.strip() if isinstance(told.value, str) else None
    if not text:
        raise PlaceError(told.source, told.value, f"is no address; {FORMS}")
    if text.startswith("ipc://"):
        return _ipc(told, text)
    if "://" in text.removeprefix("tcp://"):
        raise PlaceError(told.source, text, f"has an unknown transport; {FORMS}")
    name, at, rest = text.removeprefix("tcp://").rpartition("@")
    if at and not _ACTOR.fullmatch(name):
        raise PlaceError(told.source, text, f"{name!r} is no name of a key to call; {FORMS}")
    host, number = split_host(told, rest)
    if number is None:
        number = port
    if not (0 if wildcard else 1) <= number < 1 << 16:
        low = 0 if wildcard else 1
        raise PlaceError(told.source, text, f"port {number}, allowed: {low} to 65535")
    if host in WILDCARDS and not wildcard:
        raise PlaceError(told.source, text, "is no address to call; name one of that host")
    return f"tcp://{'' if wildcard else name + at}{host}:{number}"


def is_loopback(endpoint: str) -> bool:
    """Say whether only processes of this machine can reach what is bound at an endpoint."""
    if not endpoint.startswith("tcp://"):
        return True
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host in ("*", ""):
        return False
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)


def split_host(told: Told, text: str) -> tuple[str, int | None]:
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

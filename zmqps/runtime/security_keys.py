"""The key folder of a cluster: who may take part, in which role, and the secrets of those here.

    allowed             everybody's public keys: a line each, a name and the key's 40 letters
    shard.key           one actor's key pair; so is shard-alpha.key

An actor's name is its role, or its role, a dash and more: `shard`, `shard-alpha`. A name may have
several lines in `allowed` while its key is being changed; a process uses the one in its `.key`
file. The folder is 0700, its files 0600. `allowed` is read again when it has changed: a member is
let in, or put out, without a restart of others.
"""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from zmqps.runtime.addresses import PlaceError

ALLOWED: Final = "allowed"
SUFFIX: Final = ".key"
ROLES: Final = ("coordinator", "broker", "shard", "replica", "client", "observer", "agent")

MAY_SPEAK_TO: Final = {
    "coordinator": frozenset(ROLES) - {"coordinator"},
    "broker": frozenset({"replica", "client"}),
    "shard": frozenset({"broker", "shard"}),
    "replica": frozenset({"replica"}),  # of which one is made of several stages
    "agent": frozenset({"agent", "observer"}),
    "observer": frozenset({"agent"}),  # who watches agents on other hosts
}
"""Whose keys are let in where something is bound, by the role of what is bound."""

ALLOWED_BYTES_MAX = 1 << 20
_NAME = re.compile(rf"({'|'.join(ROLES)})(-[A-Za-z0-9_.-]{{1,40}})?")
_HEAD = (
    "# Who may take part in this cluster: in each line ROLE or ROLE-MORE, and a public key.\n"
    "# Copy this file to the key folder of every host; zmqps reads it again when it changes.\n"
)


def role_of(name: str) -> str:
    """Return the role that a name stands for, "" if it is none."""
    found = _NAME.fullmatch(name)
    return found[1] if found else ""


def split_name(endpoint: str) -> tuple[str, str]:
    """Return the actor that `tcp://NAME@HOST:PORT` expects there ("": any), and the bare endpoint.

    >>> split_name("tcp://shard-a@10.0.0.1:7100")
    ('shard-a', 'tcp://10.0.0.1:7100')
    """
    scheme, slashes, rest = endpoint.partition("://")
    name, at, bare = rest.rpartition("@") if scheme == "tcp" else ("", "", rest)
    return (name, f"{scheme}{slashes}{bare}") if at else ("", endpoint)


def join_name(name: str, endpoint: str) -> str:
    """Return an endpoint that says whose key is expected there, unless that is just its role's."""
    if role_of(name) == name or not endpoint.startswith("tcp://"):
        return endpoint
    return f"tcp://{name}@{endpoint.removeprefix('tcp://')}"


class Allowed:
    """The public keys of a cluster, as its file says now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._names: dict[str, str] = {}  # by key
        self.problem = ""  # what is wrong with the file's newest text; the one before counts
        self.refresh()
        if self.problem:
            raise PlaceError("--keys", path, self.problem)

    def refresh(self) -> None:
        """Read the file again, if it has changed."""
        try:
            found = self.path.stat()
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if seen == self._seen:
                return
            self._seen = seen
            self._names, self.problem = _read_allowed(self.path), ""
        except (OSError, ValueError) as error:
            self.problem = getattr(error, "strerror", None) or str(error)

    def name(self, key: str) -> str:
        """Return whose key this is, "" if nobody's."""
        return self._names.get(key, "")

    def keys(self, name: str) -> list[str]:
        """Return the public keys of a name, the newest last."""
        return [key for key, whose in self._names.items() if whose == name]

    def names(self) -> list[str]:
        """Return all names, each once, in the order of the file."""
        return list(dict.fromkeys(self._names.values()))


@dataclass(frozen=True, slots=True)
class Keys:
    """One process's part of a key folder: its own key pair, and the keys of all others."""

    name: str
    public: bytes
    secret: bytes = field(repr=False)
    allowed: Allowed = field(repr=False)

    def of_peer(self, name: str) -> bytes:
        """Return the public key to expect of a peer. Raises PlaceError when it is not known."""
        self.allowed.refresh()
        found = self.allowed.keys(name)
        if not found:
            raise PlaceError("--keys", self.allowed.path, f"has no key of {name!r}")
        return found[-1].encode()


# --- Reading --------------------------------------------------------------------------------------


def read_keys(path: Path, role: str) -> Keys:
    """Return the keys of a process of this role: `path` is a key folder, or a key file in one.

    Raises PlaceError for what is missing, damaged, of another role, or readable by others.
    """
    path = path.expanduser().absolute()
    file = path / f"{role}{SUFFIX}" if path.is_dir() else path
    _refuse_readable(file, f"make one with: zmqps keys {file.parent} {role}")
    _refuse_readable(file.parent / ALLOWED, "it stands beside the key in a folder of zmqps keys")
    words = file.read_text("ascii", "replace").split()
    if len(words) != 3 or not (_is_key(words[1]) and _is_key(words[2])):
        raise PlaceError("--keys", file, "is no key file: a name and two keys of 40 letters")
    name, public, secret = words
    if role_of(name) != role:
        raise PlaceError("--keys", file, f"is the key of {name!r:.60}, which is no {role}'s")
    if zmq.curve_public(secret.encode()) != public.encode():
        raise PlaceError("--keys", file, "its two keys do not belong together")
    return Keys(name, public.encode(), secret.encode(), Allowed(file.parent / ALLOWED))


def _refuse_readable(file: Path, hint: str) -> None:
    """Raise PlaceError for a file that is missing, or that others may read or write."""
    try:
        modes = {place: place.stat().st_mode for place in (file, file.parent)}
        owner = file.stat().st_uid
    except OSError as error:
        raise PlaceError("--keys", file, f"{error.strerror}; {hint}") from None
    if not stat.S_ISREG(modes[file]):
        raise PlaceError("--keys", file, "is no file")
    if owner not in (os.getuid(), 0):
        raise PlaceError("--keys", file, "belongs to another user")
    for place, mode in modes.items():
        if mode & 0o077:
            what = f"others may use it (mode {stat.S_IMODE(mode):04o}); chmod go= {place}"
            raise PlaceError("--keys", place, what)


def _read_allowed(path: Path) -> dict[str, str]:
    """Return names by key. Raises ValueError that names the line."""
    if path.stat().st_size > ALLOWED_BYTES_MAX:
        raise ValueError(f"has more than {ALLOWED_BYTES_MAX} bytes")
    names: dict[str, str] = {}
    for number, line in enumerate(path.read_text("ascii", "replace").splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) != 2 or not role_of(words[0]) or not _is_key(words[1]):
            raise ValueError(f"line {number}: must be ROLE or ROLE-MORE and a key of 40 letters")
        if names.setdefault(words[1], words[0]) != words[0]:
            raise ValueError(f"line {number}: {names[words[1]]} has the same key")
    return names


def _is_key(text: str) -> bool:
    try:
        return len(text) == 40 and len(z85.decode(text.encode())) == 32
    except (ValueError, KeyError):
        return False


# --- Making ---------------------------------------------------------------------------------------


def make_keys(folder: Path, names: Iterable[str], *, renew: bool = False) -> list[str]:
    """Make a key pair for each of `names` that has none; return those that got one.

    With `renew` each gets a new one; the old one stays allowed until its line is taken out.
    Raises PlaceError for a name that is none, and for a folder that others may use.
    """
    names = list(names)
    for name in names:
        if not role_of(name):
            message = f"is no name; allowed: {', '.join(ROLES)}, or one of them, a dash and more"
            raise PlaceError("NAME", name, message)
    folder = folder.expanduser().absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            raise PlaceError("FOLDER", folder, f"others may use it; chmod go= {folder}")
        made = [n for n in names if renew or not (folder / f"{n}{SUFFIX}").exists()]
        for name in made:
            public, secret = (key.decode() for key in zmq.curve_keypair())
            _allow(folder / ALLOWED, name, public)  # first: a key without it would be refused
            _write(folder / f"{name}{SUFFIX}", f"{name} {public} {secret}\n")
    except OSError as error:
        raise PlaceError("FOLDER", folder, error.strerror or str(error)) from None
    return made


def _allow(path: Path, name: str, public: str) -> None:
    """Add a line to `allowed`, at once or not at all."""
    before = path.read_text("ascii") if path.exists() else _HEAD
    if path.exists():
        _read_allowed(path)
    _write(path, f"{before.rstrip(chr(10))}\n{name} {public}\n")


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in the place of the one before, whole."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise

"""Checkpoints on disk: files of blocks that shards write, and a manifest that makes them a whole.

A file holds blocks as safetensors: for each block its parameters, named by its key in hexadecimal,
and its optimiser state, named `<key>.<state>`. The metadata entry `zmqps` is the CRC of what
follows it, a JSON object: what each block is, its count of updates, the pushes it has seen, and a
CRC of each array. (One entry: the library writes several in any order, and equal blocks are to give
equal bytes.) Files appear under their names only when they are whole and on disk.

The manifest is JSON, written last. It has `files` ([name, bytes] each), `layout`
(`Layout.to_wire()`), `elsewhere` (names of files that other hosts wrote, which need not be here),
and whatever else its writer adds.
"""

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from zmqps.actors.base import Array
from zmqps.actors.shard.tasks import BlockCopy, Restore, SaveChunk, Seen
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.keys import Block, Layout
from zmqps.protocol.share import Share

FORMAT = 1
MANIFEST = "manifest.json"
FOLDER = "checkpoints"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read: the file, what was found there and what was expected."""

    def __init__(self, place: Path | str, found: str, expected: str):
        super().__init__(f"{place}: {found}, expected {expected}")


# --- Writing --------------------------------------------------------------------------------------


def save_chunk(task: SaveChunk) -> int:
    """Write a chunk of blocks; return the bytes of the file. Raises OSError, leaving no file."""
    arrays: dict[str, Array] = {}
    blocks: dict[str, dict[str, Any]] = {}
    for copy in task.blocks:
        named = _arrays_of(copy)
        arrays |= named
        blocks[f"{copy.block.key:016x}"] = {
            "tensor": copy.block.tensor,
            "number": copy.block.number,
            "rows": [copy.block.start, copy.block.stop],
            "shape": copy.block.shape,
            "dtype": copy.block.dtype,
            "updates": copy.updates,
            "moved": copy.moved,
            "state": sorted(copy.state),
            "seen": {str(who): seen for who, seen in copy.seen.items()},
            "crc": {name: _crc(array) for name, array in named.items()},
        }
    text = json.dumps({"format": FORMAT, "blocks": blocks})
    metadata = {"zmqps": f"{zlib.crc32(text.encode())} {text}"}
    folder = Path(task.folder)
    for old in _numbered(folder.parent) if task.oldest else ():
        if int(old.name) < task.oldest:
            _remove(old)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / task.name
    _write_whole(path, lambda temporary: _save_file(arrays, temporary, metadata))
    return path.stat().st_size


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, which makes the checkpoint whole. Raises CheckpointError, OSError."""
    path = folder / MANIFEST
    _check_manifest(path, manifest)
    _check_files(folder, manifest)
    text = json.dumps({**manifest, "crc": _manifest_crc(manifest)}, indent=1)
    folder.mkdir(parents=True, exist_ok=True)  # no shard may be on this host
    _write_whole(path, lambda temporary: temporary.write_text(text))


def _save_file(arrays: dict[str, Array], path: Path, metadata: dict[str, str]) -> None:
    try:
        save_file(arrays, path, metadata)
    except SafetensorError as error:  # the library's own type hides which error of the system
        raise OSError(f"{path.parent}: {error}") from error


def _write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then give it its name, each step on disk before the next.

    The temporary file is removed when anything fails.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        sync_folder(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Have on disk which files a folder holds. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _arrays_of(copy: BlockCopy) -> dict[str, Array]:
    key = f"{copy.block.key:016x}"
    return {key: copy.parameters, **{f"{key}.{name}": copy.state[name] for name in copy.state}}


def _crc(array: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


# --- Reading --------------------------------------------------------------------------------------


def restore(task: Restore) -> list[BlockCopy]:
    """Find blocks in a checkpoint's files, whichever shards wrote them, one block at a time.

    Raises CheckpointError for a file that is damaged, a block that is missing, there twice or
    different from what it should be, and for another rule's state.
    """
    wanted = {block.key: block for block in task.blocks}
    found: dict[int, BlockCopy] = {}
    absent = [file for file in task.files if not Path(file).exists()]  # perhaps on another host
    for file in (file for file in task.files if file not in absent):
        for copy in _read_blocks(Path(file), wanted, task.state_names):
            if copy.block.key in found:
                raise CheckpointError(file, f"{_name(copy.block)} a second time", "each block once")
            found[copy.block.key] = copy
    for key, block in wanted.items():
        if key not in found and not task.partly:
            where = ", ".join(absent or task.files) or "no files"
            if absent:
                where += ": No such file on this host"
            raise CheckpointError(where, f"no {_name(block)}", "each block once")
    return [found[block.key] for block in task.blocks if block.key in found]


def assemble(folder: Path, rows: Mapping[str, range] | None = None) -> dict[str, Array]:
    """Return the whole tensors of a checkpoint under their names, in the layout's order.

    With `rows`, of each tensor named there only these. Raises CheckpointError as `restore` does.
    """
    manifest = read_manifest(folder)
    _check_files(folder, manifest)
    layout = Layout.from_wire(manifest["layout"])
    share = Share.whole(layout) if rows is None else Share(layout, rows)
    tensors = share.empty()
    missing = {key: rows_of.block for key, rows_of in share.by_key.items()}
    wanted = dict(missing)
    for name, _ in manifest["files"]:
        for copy in _read_blocks(folder / name, wanted, None, with_state=False):
            block = copy.block
            if missing.pop(block.key, None) is None:
                raise CheckpointError(
                    folder / name, f"{_name(block)} a second time", "each block once"
                )
            _, start, stop = share.by_key[block.key]
            values = copy.parameters
            share.view(tensors, block.key)[...] = values[start:stop] if values.ndim else values
    for block in missing.values():
        raise CheckpointError(folder, f"no {_name(block)}", "each block once")
    return tensors


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest. Raises CheckpointError when it is missing or damaged."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(path, error.strerror or "no file", "a manifest") from error
    except ValueError as error:
        raise CheckpointError(path, f"no JSON ({error})", "a manifest") from error
    crc = manifest.pop("crc", None) if isinstance(manifest, dict) else None
    _check_manifest(path, manifest)
    if crc != _manifest_crc(manifest):
        raise CheckpointError(path, "a wrong checksum", "the manifest as it was written")
    return dict(manifest)


def _read_blocks(
    path: Path, wanted: "dict[int, Block] | Any", state_names: Sequence[str] | None, *,
    with_state: bool = True,
) -> Iterator[BlockCopy]:  # fmt: skip
    """Yield the wanted blocks of a file; `state_names` are what must be there (None: anything)."""
    with _opened(path) as (file, described):
        for text, about in described.items():
            block = wanted.get(int(text, 16))
            if block is None:
                continue
            _check_about(path, about, block, state_names)

            def read(name: str, about: Any = about, block: Block = block) -> Array:
                return _read_array(path, file, name, about["crc"][name], block)

            names = about["state"] if with_state else ()
            yield BlockCopy(
                block,
                read(text),
                {name: read(f"{text}.{name}") for name in names},
                about["updates"],
                _seen(about["seen"]),
                about.get("moved", about["updates"] * (block.stop - block.start)),
            )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a file of blocks; give it and the description of its blocks, which is right."""
    try:
        with safe_open(path, framework="np") as file:
            crc, _, text = (file.metadata() or {}).get("zmqps", "").partition(" ")
            if crc != str(zlib.crc32(text.encode())) or not text:
                raise CheckpointError(path, "a damaged description", "a file of blocks")
            described = json.loads(text)
            if described["format"] != FORMAT:
                raise CheckpointError(path, f"format {described['format']}", f"format {FORMAT}")
            yield file, described["blocks"]
    except SafetensorError as error:
        raise CheckpointError(path, f"no whole safetensors file ({error})", "blocks") from error
    except OSError as error:
        raise CheckpointError(path, error.strerror or str(error), "a file of blocks") from error


def _check_about(path: Path, about: Any, block: Block, state_names: Sequence[str] | None) -> None:
    expected = {
        "tensor": block.tensor,
        "number": block.number,
        "rows": [block.start, block.stop],
        "shape": list(block.shape),
        "dtype": block.dtype,
    }
    if state_names is not None:
        expected["state"] = sorted(state_names)
    for what, value in expected.items():
        if about[what] != value:
            raise CheckpointError(path, f"{_name(block)}: {what} {about[what]}", f"{value}")


def _read_array(path: Path, file: Any, name: str, crc: int, block: Block) -> Array:
    array = np.empty(block.shape, block.dtype)
    read = file.get_tensor(name)
    if read.shape != array.shape or read.dtype != array.dtype:
        found = f"{_name(block)}: {read.dtype} of shape {read.shape}"
        raise CheckpointError(path, found, f"{array.dtype} of shape {array.shape}")
    array[...] = read
    if _crc(array) != crc:
        raise CheckpointError(
            path, f"{_name(block)}: a wrong checksum", "the bytes that were written"
        )
    return array


def _seen(described: dict[str, Any]) -> Seen:
    return {int(who): (last, tuple(later)) for who, (last, later) in described.items()}


def _name(block: Block) -> str:
    return f"tensor {block.tensor!r} block {block.number}"


# --- The checkpoints of a run ---------------------------------------------------------------------


def checkpoint_folder(run_dir: Path, number: int) -> Path:
    """Return where checkpoint `number` of a run lies."""
    return run_dir / FOLDER / f"{number:06d}"


def is_whole(folder: Path) -> bool:
    """Say whether a checkpoint has its manifest, and all files with the sizes named there."""
    return not _damage(folder)


def newest_damage(run_dir: Path) -> str:
    """Say what is wrong with the newest checkpoint of a run; empty if nothing is, or none is."""
    return next((_damage(folder) for folder in _newest_first(run_dir)), "")


def _damage(folder: Path) -> str:
    try:
        _check_files(folder, read_manifest(folder))
    except CheckpointError as error:
        return str(error)
    return ""


def newest_checkpoint(run_dir: Path) -> Path | None:
    """Return the folder of the newest whole checkpoint of a run; None if there is none."""
    return next((folder for folder in _newest_first(run_dir) if is_whole(folder)), None)


def prune(run_dir: Path, keep: int) -> None:
    """Remove all but the newest `keep` whole checkpoints (at least 1), and halves older than those.

    Halves that are newer than the newest whole one may be in the making; they stay.
    """
    whole = 0
    for folder in _newest_first(run_dir):
        if whole < max(keep, 1):
            whole_one = is_whole(folder)
            whole += whole_one
            if whole_one or not whole:
                continue
        _remove(folder)


def _remove(folder: Path) -> None:
    with suppress(OSError):
        (folder / MANIFEST).unlink(missing_ok=True)  # first: what is left is not whole
    shutil.rmtree(folder, ignore_errors=True)


def _newest_first(run_dir: Path) -> Iterable[Path]:
    return _numbered(run_dir / FOLDER)


def _numbered(parent: Path) -> list[Path]:
    folders = [f for f in parent.glob("*") if f.name.isdecimal() and f.is_dir()]
    return sorted(folders, key=lambda folder: int(folder.name), reverse=True)


def _check_manifest(path: Path, manifest: Any) -> None:
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, list | tuple) or not all(map(_is_file_entry, files)):
        raise CheckpointError(path, "no list `files` of [name, bytes]", "a manifest")
    try:
        Layout.from_wire(manifest.get("layout"))
    except ProtocolError as error:
        raise CheckpointError(path, f"{error}", "a manifest with a layout") from error


def _is_file_entry(entry: Any) -> bool:
    if not isinstance(entry, list | tuple) or len(entry) != 2:
        return False
    name, nbytes = entry
    return isinstance(name, str) and Path(name).name == name and type(nbytes) is int


def _check_files(folder: Path, manifest: dict[str, Any]) -> None:
    elsewhere = manifest.get("elsewhere", ())
    for name, nbytes in manifest["files"]:
        path = folder / name
        if name in elsewhere and not path.exists():
            continue
        try:
            found = path.stat().st_size
        except OSError as error:
            raise CheckpointError(path, error.strerror or "no file", f"{nbytes} bytes") from error
        if found != nbytes:
            raise CheckpointError(path, f"{found} bytes", f"{nbytes} bytes")


def _manifest_crc(manifest: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())

"""The house rules that a machine can check, each with small examples that break it or keep it."""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.xdist_group("tidy")  # one process reads the sources

# Each package may import itself, what stands beside it here, and the modules in LEAVES.
LEAVES = {"version"}
MATHEMATICS = {"optim", "models", "data"}
MAY_IMPORT = {
    "version": set(),
    "protocol": set(),
    "optim": {"protocol"},
    "models": {"protocol"},
    "data": {"protocol"},
    "consensus": {"protocol", *MATHEMATICS},
    "actors": {"protocol", *MATHEMATICS},
    "runtime": {"protocol", *MATHEMATICS, "actors"},
    "simulator": {"protocol", *MATHEMATICS, "actors"},
    "trace": {"protocol"},
}  # a module at the top (cli, job, roles, ...) may import everything, and so may these packages:
AT_THE_TOP = {"commands", "jobfile", "runs"}
SHARED_BY_ACTORS = {"base", "link", "membership", "session", "settings"}  # beside the packages
ONLY_IN_RUNTIME = {
    *("zmq", "threading", "_thread", "queue", "socket", "select", "selectors"),
    *("asyncio", "multiprocessing", "concurrent"),
}
NOT_IN_A_CORE = {
    *("time", "datetime", "random", "secrets", "uuid", "logging", "structlog"),
    *("os", "io", "pathlib", "shutil", "tempfile", "subprocess", "signal"),
}
CODE_FROM_BYTES = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
LINES_IN_A_FILE = 400
LINES_IN_A_FUNCTION = 60
FORBIDDEN_WORDS = {
    *("worker", "workers", "node", "nodes", "server", "servers", "manager", "managers"),
    *("util", "utils", "pull", "pulls", "pulled"),
}
# A word may be a library's own where that library is used.
WORD_OF_A_LIBRARY = {"node": {"ast", "yaml"}, "nodes": {"ast", "yaml"}}
# In pieces, so that this file does not hold what it looks for.
UNFINISHED, UNWRITTEN, PLACEHOLDER = "TO" + "DO", "NotImplemented" + "Error", "X" * 3
LEFTOVER = re.compile(rf"\b({UNFINISHED}|{UNWRITTEN}|{PLACEHOLDER}|FIX{''}ME)\b")


@dataclass(frozen=True)
class Module:
    """One Python file. `path` is relative to the project's root."""

    path: Path
    source: str

    @property
    def name(self) -> str:
        """The dotted name, as in an import."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and dotted name of every import: `from a import b` is both a.b."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


Complaints = Iterator[tuple[int, str]]


def part(name: str) -> str:
    """zmqps.optim.rules -> optim; zmqps.cli -> cli; zmqps itself -> ''."""
    return [*name.split("."), ""][1]


def imports_go_one_way(module: Module) -> Complaints:
    here = part(module.name)
    if here not in MAY_IMPORT:
        return
    for line, name in module.imports():
        if name.split(".")[0] == "zmqps" and part(name) not in MAY_IMPORT[here] | LEAVES | {here}:
            yield line, f"{here} may not import {name}"


def only_runtime_has_sockets_and_threads(module: Module) -> Complaints:
    if part(module.name) == "runtime":
        return
    for line, name in module.imports():
        if name.split(".")[0] in ONLY_IN_RUNTIME:
            yield line, f"only zmqps/runtime may import {name}"


def actor(name: str) -> str:
    """zmqps.actors.shard.blocks -> shard; '' outside of actors, and for what actors share."""
    package, _, rest = name.partition("zmqps.actors.")
    first = rest.split(".")[0]
    return "" if package or first in SHARED_BY_ACTORS else first


def actors_are_apart(module: Module) -> Complaints:
    if part(module.name) != "actors":
        return
    for line, name in module.imports():
        if actor(name) not in ("", actor(module.name)):
            yield line, f"an actor may not import another: {name}"


def cores_are_pure(module: Module) -> Complaints:
    if part(module.name) != "actors":
        return
    for line, name in module.imports():
        if name.split(".")[0] in NOT_IN_A_CORE or name.startswith("numpy.random"):
            yield line, f"a core is handed its clock, chance and files: {name}"


def file_is_short(module: Module) -> Complaints:
    lines = len(module.source.splitlines())
    if lines > LINES_IN_A_FILE:
        yield lines, f"{lines} lines, at most {LINES_IN_A_FILE}"


def functions_fit_on_a_screen(module: Module) -> Complaints:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > LINES_IN_A_FUNCTION:
                yield node.lineno, f"{node.name}: {lines} lines, at most {LINES_IN_A_FUNCTION}"


def nothing_is_left_over(module: Module) -> Complaints:
    for number, line in enumerate(module.source.splitlines(), 1):
        if found := LEFTOVER.search(line):
            yield number, f"left over: {found[0]}"


def called(node: ast.AST) -> str:
    """The name of the function that `node` calls, such as `print` or `time.sleep`; else ''."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def bytes_never_become_code(module: Module) -> Complaints:
    for line, name in module.imports():
        if name.split(".")[0] in CODE_FROM_BYTES:
            yield line, f"import of {name}"
    for node in module.nodes:
        if called(node) in {"eval", "exec"}:
            yield node.lineno, called(node)
        elif isinstance(node, ast.Attribute) and node.attr in {"recv_pyobj", "send_pyobj"}:
            yield node.lineno, node.attr
        elif isinstance(node, ast.keyword) and ast.unparse(node) == "allow_pickle=True":
            yield node.lineno, "allow_pickle=True"


def nothing_prints(module: Module) -> Complaints:
    for node in module.nodes:
        if called(node) == "print":
            yield node.lineno, "print(); click.echo and the log are for that"


def nobody_sleeps(module: Module) -> Complaints:
    for line, name in module.imports():
        if name in {"time.sleep", "asyncio.sleep"}:
            yield line, f"import of {name}"
    for node in module.nodes:
        if called(node) in {"time.sleep", "asyncio.sleep"}:
            yield node.lineno, f"{called(node)}: wait for an event"


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names that this module makes up itself; names of other libraries' things are theirs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) == "self":
                yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield getattr(node, "lineno", 0), node.asname


def words(name: str) -> list[str]:
    """ShardPull, shard_pull and SHARD_PULL -> shard, pull."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")


def names_use_our_words(module: Module) -> Complaints:
    libraries = {name.split(".")[0] for _, name in module.imports()}
    for line, name in [*defined_names(module.tree), (1, module.path.stem)]:
        if name.startswith("__"):
            continue
        for word in FORBIDDEN_WORDS.intersection(words(name)):
            if not WORD_OF_A_LIBRARY.get(word, set()) & libraries:
                yield line, f"the word {word} in {name}"
    for node in module.nodes:
        if isinstance(node, ast.ClassDef) and "get" in words(node.name):
            yield node.lineno, f"the word get in {node.name}: it is a fetch"


Rule = Callable[[Module], Complaints]
IN_THE_PACKAGE: list[Rule] = [
    imports_go_one_way,
    only_runtime_has_sockets_and_threads,
    actors_are_apart,
    cores_are_pure,
    bytes_never_become_code,
    nothing_prints,
    names_use_our_words,
]
IN_TESTS: list[Rule] = [nobody_sleeps]
EVERYWHERE: list[Rule] = [file_is_short, functions_fit_on_a_screen, nothing_is_left_over]


def is_script(file: Path) -> bool:
    return not file.suffix and file.read_bytes().startswith(b"#!/usr/bin/env python")


@cache
def modules(*folders: str) -> list[Module]:
    """Every Python file under these folders, those without the suffix among them."""
    files = (file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file())
    paths = sorted(file for file in files if file.suffix == ".py" or is_script(file))
    return [Module(path.relative_to(ROOT), path.read_text()) for path in paths]


def complaints(rule: Rule, *folders: str) -> list[str]:
    return [f"{m.path}:{line}: {what}" for m in modules(*folders) for line, what in rule(m)]


@pytest.mark.parametrize("rule", IN_THE_PACKAGE)
def test_the_package_is_tidy(rule):
    assert complaints(rule, "zmqps") == []


@pytest.mark.parametrize("rule", IN_TESTS)
def test_the_tests_are_tidy(rule):
    assert complaints(rule, "tests") == []


@pytest.mark.parametrize("rule", EVERYWHERE)
def test_everything_is_tidy(rule):
    assert complaints(rule, "zmqps", "tools", "tests") == []


def test_the_package_is_looked_at():
    names = {module.name for module in modules("zmqps", "tools", "tests")}
    assert {"zmqps", "zmqps.protocol.tensors", "tools.environment", __name__} <= names | {__name__}
    known = MAY_IMPORT.keys() | AT_THE_TOP
    assert all(part(name) in known for name in names if re.match(r"zmqps\.\w+\.", name))


def test_scripts_without_suffix_are_linted():
    scripts = {module.path for module in modules("tools") if not module.path.suffix}
    linted = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["extend-include"]
    assert {str(path) for path in scripts} <= set(linted)


BAD = [
    (imports_go_one_way, "zmqps/protocol/wire.py", "from zmqps.actors.base import Tick"),
    (imports_go_one_way, "zmqps/protocol/__init__.py", "from ..optim import rules"),
    (imports_go_one_way, "zmqps/optim/rules.py", "import zmqps.models.layers"),
    (imports_go_one_way, "zmqps/models/layers.py", "from zmqps import data"),
    (
        imports_go_one_way,
        "zmqps/actors/shard/core.py",
        "def f():\n    from zmqps.runtime import loop",
    ),
    (imports_go_one_way, "zmqps/consensus/check.py", "from zmqps.actors.base import Tick"),
    (imports_go_one_way, "zmqps/runtime/loop.py", "from zmqps.cli import main"),
    (imports_go_one_way, "zmqps/runtime/loop.py", "from zmqps.simulator import clock"),
    (imports_go_one_way, "zmqps/trace/join.py", "from zmqps.optim import rules"),
    (imports_go_one_way, "zmqps/data/load.py", "from .. import job"),
    (only_runtime_has_sockets_and_threads, "zmqps/actors/shard/core.py", "import zmq.utils"),
    (only_runtime_has_sockets_and_threads, "zmqps/cli.py", "from threading import Thread"),
    (only_runtime_has_sockets_and_threads, "zmqps/data/load.py", "import os, queue"),
    (actors_are_apart, "zmqps/actors/shard/x.py", "from zmqps.actors.replica.fetch import A"),
    (actors_are_apart, "zmqps/actors/shard/x.py", "from zmqps.actors import replica"),
    (actors_are_apart, "zmqps/actors/shard/x.py", "from ..replica import fetch"),
    (actors_are_apart, "zmqps/actors/shard/x.py", "import zmqps.actors.replica.fetch"),
    (actors_are_apart, "zmqps/actors/link.py", "from zmqps.actors.replica import requests"),
    (cores_are_pure, "zmqps/actors/shard/core.py", "from time import monotonic"),
    (cores_are_pure, "zmqps/actors/shard/core.py", "from numpy.random import default_rng"),
    (file_is_short, "zmqps/cli.py", "x = 1\n" * 401),
    (functions_fit_on_a_screen, "zmqps/cli.py", "def f():\n" + "    x = 1\n" * 60),
    (nothing_is_left_over, "tools/x.py", f"# {UNFINISHED}: finish"),
    (nothing_is_left_over, "zmqps/cli.py", f"raise {UNWRITTEN}"),
    (bytes_never_become_code, "zmqps/cli.py", "import pickle"),
    (bytes_never_become_code, "zmqps/cli.py", "from marshal import loads"),
    (bytes_never_become_code, "zmqps/cli.py", "eval('1')"),
    (bytes_never_become_code, "zmqps/cli.py", "socket.recv_pyobj()"),
    (bytes_never_become_code, "zmqps/cli.py", "np.load(path, allow_pickle=True)"),
    (nothing_prints, "zmqps/cli.py", "print('loss')"),
    (nobody_sleeps, "tests/test_x.py", "time.sleep(1)"),
    (nobody_sleeps, "tests/test_x.py", "from time import sleep"),
    (names_use_our_words, "zmqps/utils.py", ""),
    (names_use_our_words, "zmqps/cli.py", "class ShardManager: ..."),
    (names_use_our_words, "zmqps/cli.py", "def pull_block(): ..."),
    (names_use_our_words, "zmqps/cli.py", "def f(worker_count): ..."),
    (names_use_our_words, "zmqps/cli.py", "self.server = 1"),
    (names_use_our_words, "zmqps/cli.py", "for NODE in nodes: ..."),
    (names_use_our_words, "zmqps/cli.py", "import socketserver as server"),
    (names_use_our_words, "zmqps/protocol/messages.py", "class GetBlocks: ..."),
]

GOOD = [
    (imports_go_one_way, "zmqps/protocol/wire.py", "from . import keys\nimport numpy"),
    (imports_go_one_way, "zmqps/protocol/wire.py", "from zmqps.version import VERSION"),
    (imports_go_one_way, "zmqps/actors/shard/core.py", "from zmqps.optim.rules import Adagrad"),
    (imports_go_one_way, "zmqps/roles.py", "from zmqps.runtime import loop"),
    (imports_go_one_way, "zmqps/__init__.py", "from zmqps.job import Job"),
    (only_runtime_has_sockets_and_threads, "zmqps/runtime/loop.py", "import zmq, threading"),
    (actors_are_apart, "zmqps/actors/shard/x.py", "from zmqps.actors.base import Tick"),
    (actors_are_apart, "zmqps/actors/shard/x.py", "from zmqps.actors import link"),
    (actors_are_apart, "zmqps/actors/replica/push.py", "import zmqps.actors.replica.fetch"),
    (actors_are_apart, "zmqps/roles.py", "from zmqps.actors.replica.fetch import FetchCore"),
    (cores_are_pure, "zmqps/actors/shard/core.py", "import math"),
    (file_is_short, "zmqps/cli.py", "x = 1\n" * 400),
    (functions_fit_on_a_screen, "zmqps/cli.py", "def f():\n" + "    x = 1\n" * 59),
    (nothing_is_left_over, "zmqps/cli.py", f"mkdtemp('{PLACEHOLDER * 2}')"),
    (bytes_never_become_code, "zmqps/cli.py", "np.load(path, allow_pickle=False)\nmodel.eval()"),
    (nothing_prints, "zmqps/cli.py", "click.echo('loss')"),
    (nobody_sleeps, "tests/test_x.py", "clock.sleep(1)"),
    (names_use_our_words, "zmqps/cli.py", "x = node.children + config.getvalue(worker=1)"),
    (names_use_our_words, "zmqps/cli.py", "from contextlib import contextmanager"),
    (names_use_our_words, "zmqps/jobfile/text.py", "import yaml\ndef compose_node(node): ..."),
    (names_use_our_words, "zmqps/cli.py", "def get_command(self, ctx, name): ..."),
]


def examples(table):
    return [pytest.param(*row, id=f"{row[0].__name__}-{n}") for n, row in enumerate(table)]


@pytest.mark.parametrize(("rule", "path", "source"), examples(BAD))
def test_a_rule_catches(rule, path, source):
    assert list(rule(Module(Path(path), source)))


@pytest.mark.parametrize(("rule", "path", "source"), examples(GOOD))
def test_a_rule_lets_pass(rule, path, source):
    assert list(rule(Module(Path(path), source))) == []


def test_every_rule_has_an_example_that_breaks_it():
    assert {row[0] for row in BAD} == {*IN_THE_PACKAGE, *IN_TESTS, *EVERYWHERE}

"""The pages under docs/ say what the code says: nothing is missing there, and nothing made up."""

import re
from dataclasses import fields
from importlib import import_module
from itertools import count
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from zmqps.actors.base import Effect, Received, Send
from zmqps.actors.broker import clients as broker_clients
from zmqps.actors.coordinator import members
from zmqps.actors.coordinator.core import CoordinatorCore
from zmqps.actors.coordinator.tasks import MetricsRow
from zmqps.consensus.settings import RoundSettings
from zmqps.jobfile.consensus import load_problem
from zmqps.protocol import (
    agent_events,
    data_events,
    events,
    events_reference,
    keys,
    messages,
    parts,
    sandblaster_events,
    stage_events,
    wire,
)
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.tensors import Initial, TensorSpec
from zmqps.runs.folder import ADDRESS, JOB, SUMMARY
from zmqps.runs.network_file import read_network
from zmqps.runs.simulation import NETWORK
from zmqps.runtime import transport
from zmqps.runtime.record import CURVE, METRICS, STATE

ROOT = Path(__file__).parents[2]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
PAPER = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
KINDS = {kind.__name__: kind for kind in get_args(messages.Body)}
RECORDS = {
    name: record
    for name, record in vars(parts).items()
    if isinstance(record, type) and hasattr(record, "_fields")
}
CODES = set(get_args(get_type_hints(messages.Refused)["code"]))
BOUNDS = {
    "HEADER_BYTES_MAX": wire.HEADER_BYTES_MAX,
    "ARRAYS_MAX": wire.ARRAYS_MAX,
    "FRAMES_MAX": transport.FRAMES_MAX,
    "BLOCKS_MAX": keys.BLOCKS_MAX,
    "NAME_BYTES_MAX": keys.NAME_BYTES_MAX,
    "ENDPOINTS_MAX": members.ENDPOINTS_MAX,
    "MEMBERS_MAX": members.MEMBERS_MAX,
    "REQUESTS_MAX": broker_clients.REQUESTS_MAX,
}
OUTSIDE_THE_PROTOCOL = {
    "replicas",
    "shards",
    "compute_threads",
    "checkpoints_kept",
    "log_bytes_max",
}
OBSERVER = messages.Hello("observer", "h", 1)
LIMITS = {
    name: field.default
    for name, field in ClusterSettings.model_fields.items()
    if name not in OUTSIDE_THE_PROTOCOL
}


def section(page: str, title: str) -> str:
    """Return the text under a heading, up to the next one of its rank."""
    start = page.index(title)
    rank = title.split(maxsplit=1)[0]
    return page[start:].split(f"\n{rank} ", 1)[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows."""
    lines = (line for line in text.splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def blocks(page: str, language: str) -> str:
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE))


def first_names(text: str) -> list[str]:
    """Return the names in the first cells of a table."""
    return [found[1] for row in rows(text) if (found := re.fullmatch(r"`(\w+)`", row[0]))]


EVENT_MODULES = (events, agent_events, data_events, sandblaster_events, stage_events)

# --- docs/protocol.md: messages -------------------------------------------------------------------


def wire_type(hint: Any) -> str:
    """Write a type as the page does."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "/".join(f'"{choice}"' for choice in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"[{wire_type(arguments[0])}]"
    if origin is tuple:
        return f"({' '.join(map(wire_type, arguments))})"
    return {dict: "map", list: "list"}.get(origin, hint.__name__)


def definition(kind: Any) -> str:
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind)] if kind.__name__ in KINDS else kind._fields
    return " ".join(f"{name}:{wire_type(hints[name])}" for name in names)


def defined() -> dict[str, str]:
    """Return each definition on the page; a line that begins with a space goes on."""
    text = " ".join(blocks(PROTOCOL, "messages").replace("\n ", " ").split(" "))
    lines = (line.partition("=") for line in text.splitlines() if line)
    return {name.strip(): " ".join(re.sub(r"/\s+", "/", rest).split()) for name, _, rest in lines}


def test_every_message_is_defined_as_it_travels():
    assert defined() == {name: definition(kind) for name, kind in (KINDS | RECORDS).items()}


def test_every_kind_is_in_a_dialogue_and_no_other():
    said = set(re.findall(r"\b[A-Z][A-Za-z]+", re.sub(r"\(.*\)", "", blocks(PROTOCOL, "dialogue"))))
    assert said == KINDS.keys() - {"Refused", "Heartbeat"}


def test_every_refusal_code_has_its_row():
    assert set(first_names(section(PROTOCOL, "## 11. Refusals"))) == CODES


def test_the_version_is_that_of_the_code():
    assert f"| Version | {messages.PROTOCOL_VERSION} |" in PROTOCOL
    assert f"# ZMQPS/{messages.PROTOCOL_VERSION}:" in PROTOCOL


def test_the_header_is_that_of_the_code():
    message = messages.Message(7, 1, messages.Fetch(()))
    header = wire.encode(message)[0]
    grammar = blocks(PROTOCOL, "abnf")
    items = re.search(r"^header += (.*\n(?: .*\n)*)", grammar, re.MULTILINE)
    assert items is not None
    names = items[1].split()
    assert names[0] == f"%x{header[0]:02X}"
    assert names[0] == f"%x{0x90 + len(names) - 1:02X}"
    assert names[1:] == [
        *("signature", "version", "kind", "incarnation", "sequence", "cause", "target", "epoch"),
        *("number", "taken", "fields", "arrays"),
    ]
    assert f'%x{header[1]:02X} %s"{wire.SIGNATURE}"' in grammar
    assert f"at most {wire.AXES_MAX} axes" in grammar
    assert f"*{wire.ARRAYS_MAX}array" in grammar
    assert f"*{transport.ENVELOPE_MAX}routing-id" in grammar


# --- docs/protocol.md: numbers and names ----------------------------------------------------------


def test_every_limit_is_there_with_its_default():
    table = rows(section(PROTOCOL, "## 10. Liveness"))
    stated = {row[0].strip("`"): row[1] for row in table if row[0].startswith("`")}
    assert stated == {name: str(value) for name, value in LIMITS.items()}


def test_every_bound_is_there_with_its_value():
    table = rows(section(PROTOCOL, "## 3. Frames"))
    stated = {row[0].strip("`"): row[1] for row in table if row[0].startswith("`")}
    assert stated == {name: str(value) for name, value in BOUNDS.items()}


def known_names() -> set[str]:
    """Return all names that the page may use: of messages, their fields and choices, of limits."""
    found = {
        *KINDS,
        *RECORDS,
        *BOUNDS,
        *ClusterSettings.model_fields,
        *CODES,
        *get_args(keys.Dtype),
    }
    for name in defined().values():
        found |= set(re.findall(r"(\w+):", name)) | set(re.findall(r'"(\w+)"', name))
    found |= {field.name for field in fields(messages.Message)}
    found |= set(keys.INITIAL_KINDS)
    found |= {"update", "schedule", "seed", "on_nonfinite", "sync"}  # of `rule`
    found |= RoundSettings.model_fields.keys()  # of a consensus file
    found |= {"ROUTER_MANDATORY", "ROUTER_HANDOVER", "MAXMSGSIZE", "LINGER"}  # of libzmq
    return found | {"cluster", "uint", "str", "list", "map", "int", "float", "T"}  # of the page


def test_the_page_names_nothing_that_does_not_exist():
    text = re.sub(r"^```.*?^```", "", PROTOCOL, flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`([A-Za-z_]\w*)`", text))
    assert named - known_names() == set()


# --- docs/protocol.md: the status tree ------------------------------------------------------------


def a_cluster() -> CoordinatorCore:
    """Return a coordinator that has something to tell in each part of its status."""
    core = CoordinatorCore(
        run="r", run_dir="/r", host="h", cluster=ClusterSettings(shards=1, replicas=1)
    )
    sequence = count(1)

    def say(who: bytes, body: messages.Body) -> list[Effect]:
        member = core.members.by_peer.get((who,))
        message = messages.Message(member.incarnation if member else 0, next(sequence), body)
        return core.handle(Received("front", message, (), (who,)), 0.0)

    for role in ("shard", "broker", "replica"):
        say(role.encode(), messages.Hello(role, "h", 1, ("tcp://127.0.0.1:1",)))
    layout = keys.Layout((TensorSpec("w", (2,), "float32", Initial("constant")),))
    rule = {"update": {"rule": "sgd", "rate": 1.0}, "schedule": {"kind": "constant"}}
    say(b"replica", messages.Declare("j", layout.to_wire(), {}, rule, {}, 10))
    say(b"replica", messages.Progress(1, 1, 1, 0.5, 1, 1, 1, 1, 8, 1.0, 1.0, 0))
    report = messages.ShardReport(
        1, 8, 1, parts.NEVER, parts.NEVER, ((3, 1),), 1, 0, 0, 0, 8, 8, (1,), ""
    )
    say(b"shard", report)
    say(b"broker", messages.BrokerReport(1, 1, 0, 0, 8, 2))
    core.training.evaluations.start(0.0)
    say(b"replica", messages.Evaluated(1, 0.5, 0.5, 10, 1.0))
    return core


def status_of(core: CoordinatorCore) -> dict[str, Any]:
    core.handle(Received("front", messages.Message(0, 1, OBSERVER), (), (b"observer",)), 0.0)
    who = core.members.by_peer[b"observer",].incarnation
    asked = messages.Message(who, 2, messages.AskStatus())
    effects = core.handle(Received("front", asked, (), (b"observer",)), 0.0)
    sent = [effect.message.body for effect in effects if isinstance(effect, Send)]
    return next(body.tree for body in sent if isinstance(body, messages.Status))


def names_of(tree: Any, prefix: str = "") -> set[str]:
    """Return the paths of a tree; items of a list have that of the list."""
    if isinstance(tree, list):
        return set().union(*(names_of(item, prefix) for item in tree))
    if not isinstance(tree, dict):
        return set()
    return set().union(
        *({f"{prefix}{name}"} | names_of(tree[name], f"{prefix}{name}.") for name in tree)
    )


def told() -> set[str]:
    """Return the paths that the page tells, by how far its lines are indented."""
    paths, above = set(), [""]
    for line in blocks(PROTOCOL, "status").splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = [line.split(":")[0]] if ":" in line else line.split(",")
        paths |= {above[depth] + name.strip() for name in names}
        above[depth + 1 :] = [f"{above[depth]}{names[0].strip()}."]
    return paths


def test_the_status_tree_is_told_as_it_is():
    by_shard = {"routes.bytes.0"}
    assert names_of(status_of(a_cluster())) - by_shard == told()


# --- docs/run-folder.md ---------------------------------------------------------------------------

FOLDER = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")


def test_the_columns_of_the_metrics_are_those_of_the_code():
    assert first_names(section(FOLDER, "## metrics.csv")) == [f.name for f in fields(MetricsRow)]


def test_the_fields_of_the_summary_are_those_of_the_code():
    tree = a_cluster()._summary(1.0)
    whole = section(FOLDER, "## summary.json")
    assert set(first_names(whole.split("### ")[0])) == tree.keys()
    for name in ("replicas", "shards"):
        assert set(first_names(section(whole, f"### {name}"))) == tree[name][0].keys()
    assert all(f"`{name}`" in whole for name in {**tree["staleness"], **tree["evaluations"][0]})


def test_the_files_of_a_run_are_there_under_their_names():
    for name in (JOB, ADDRESS, STATE, SUMMARY, METRICS, CURVE, NETWORK):
        assert f"| `{name}` |" in FOLDER


# --- docs/simulator.md, docs/consensus.md ---------------------------------------------------------


def test_the_files_on_the_pages_are_right(tmp_path):
    for page, read in (("simulator", read_network), ("consensus", load_problem)):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        (tmp_path / "file.yaml").write_text(blocks(text, "yaml"), encoding="utf-8")
        assert read(tmp_path / "file.yaml")


# --- docs/paper.md --------------------------------------------------------------------------------

PLACES = re.findall(r"`(zmqps/[\w/]+\.py): ([\w.]+)`", PAPER)


def found(symbol: str, inside: Any) -> Any:
    """Return what a dotted name means. Raises AttributeError; a setting means its field."""
    for name in symbol.split("."):
        settings = getattr(inside, "model_fields", {})
        inside = settings[name] if name in settings else getattr(inside, name)
    return inside


@pytest.mark.parametrize(("file", "symbol"), sorted(set(PLACES)))
def test_the_place_exists(file, symbol):
    module = import_module(file.removesuffix(".py").replace("/", "."))
    assert found(symbol, module) is not None


def test_every_row_of_the_paper_names_a_place():
    table = [row for row in rows(PAPER) if row[1] != "where"]
    assert [row[0] for row in table if not re.search(r"`zmqps/[\w/]+\.py: ", row[1])] == []
    assert {len(row) for row in table} == {3}
    assert len(table) >= 40


# --- docs/events.md -------------------------------------------------------------------------------


def test_the_page_of_events_is_what_the_catalogue_says():
    page = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    hint = "renew it: python -m zmqps.protocol.events_reference > docs/events.md"
    assert page == events_reference.events_reference(), hint


def test_every_event_is_there_and_every_meaning_is_used():
    page = events_reference.events_reference()
    kinds = get_args(events.Event)
    assert re.findall(r"^## `(\w+)`$", page, re.MULTILINE) == [kind.__name__ for kind in kinds]
    used = {field.name for kind in kinds for field in fields(kind)}
    assert used == events_reference.MEANINGS.keys()


def test_the_catalogue_lists_every_event_class():
    modules = [module.__name__ for module in EVENT_MODULES]
    classes = {
        item
        for item in vars(events).values()
        if isinstance(item, type) and item.__module__ in modules
    }
    assert isinstance(events.Event, UnionType)
    assert classes == set(get_args(events.Event))


# --- All pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target

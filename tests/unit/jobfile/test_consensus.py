import json
from pathlib import Path

import numpy as np
import pytest

from zmqps.consensus.errors import ConsensusError
from zmqps.consensus.recursion import run
from zmqps.consensus.settings import ConsensusSettings
from zmqps.jobfile.consensus import consensus_schema, load_problem, parse_settings
from zmqps.jobfile.text import JobError

JSON = """\
{ "topology": "ring", "num_agents": 5,
  "neighbors": { "0": [4, 1], "1": [0, 2], "2": [1, 3], "3": [2, 4], "4": [3, 0] },
  "weight_rule": "metropolis",
  "step_size": { "type": "diminishing", "alpha0": 0.5, "decay": "alpha0 / (k + 1)", "condition": "sum(alpha_k)=inf, sum(alpha_k^2)<inf" },
  "consensus": { "max_iter": 2000, "tol": 1e-6, "check_every": 50 } }
"""  # noqa: E501 - the file of the issue, as it stands
SIMPLEX = {"kind": "simplex"}
BALL_IN_1D = {"kind": "ball", "radius": 1, "center": [1.0]}
YAML = """\
topology: ring
num_agents: 5
step_size: {type: diminishing, alpha0: 0.5}
consensus: {max_iter: 2000, tol: 1e-6, check_every: 50}
"""


@pytest.fixture
def ring(tmp_path):
    (tmp_path / "ring.json").write_text(JSON)
    return tmp_path / "ring.json"


def problems(text, **overrides):
    with pytest.raises(JobError) as caught:
        parse_settings(text, Path("ring.yaml"), overrides)
    return {one.path: (one.line, one.message) for one in caught.value.problems}


def refusal(file, **overrides):
    dots = {name.replace("__", "."): value for name, value in overrides.items()}
    with pytest.raises(JobError) as caught:
        load_problem(file, dots)
    (one,) = caught.value.problems
    return one.line, str(one)


def test_the_file_of_the_issue_gives_the_figures_of_the_example(ring):
    found = run(load_problem(ring)).last
    assert found.rounds == 2000
    assert found.worst_agent_error == pytest.approx(2.2285e-2, rel=1e-4)
    assert found.consensus_error == pytest.approx(3.029e-4, rel=1e-3)


def test_yaml_of_the_same_shape_is_the_same(ring):
    (ring.parent / "ring.yaml").write_text(YAML)
    both = load_problem(ring), load_problem(ring.parent / "ring.yaml")
    assert run(both[0]).x.tobytes() == run(both[1]).x.tobytes()


def test_every_mistake_at_once_with_line_and_nearest_name():
    found = problems(
        """\
topologi: ring
topology: rign
num_agents: "5"
weight_rule: metropolitan
step_size:
  type: dimishing
  alpha0: 0.5
objective: {kind: quadratc}
rounds: {on_mising: wait}
losses: {probability: 2}
consensus:
  tol: -1
  chekc_every: 3
"""
    )
    assert {path: line for path, (line, _) in found.items()} == {
        "topologi": 1,
        "topology.kind": 2,
        "num_agents": 3,
        "weight_rule.rule": 4,
        "step_size.type": 6,
        "objective.kind": 8,
        "rounds.on_mising": 9,
        "losses.probability": 10,
        "consensus.tol": 12,
        "consensus.chekc_every": 13,
    }
    for path, near in [
        ("topologi", "topology"),
        ("topology.kind", "ring"),
        ("weight_rule.rule", "metropolis"),
        ("step_size.type", "diminishing"),
        ("objective.kind", "quadratic"),
        ("rounds.on_mising", "on_missing"),
        ("consensus.chekc_every", "check_every"),
    ]:
        assert f"did you mean {near}?" in found[path][1]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("step_size: {type: constant, alpha0: 1}", "", "expected topology or neighbors"),
        ("topology: ring", "step_size", "is missing"),
        (YAML + "constraint: {kind: box, upper: 1}", "", "needs algorithm: projected"),
        (YAML + "losses: {probability: 0.1}", "", "losses needs rounds.on_missing"),
        (YAML + "rounds: {staleness_max: 3}", "rounds", "goes with mode: asynchronous"),
        (YAML + "rounds: {mode: asynchronous}", "rounds", "goes with mode: asynchronous"),
        (YAML + "neighbors: {a: [1]}", "neighbors", "agents are numbers from 0, not 'a'"),
        (YAML + "neighbors: {'00': [1]}", "neighbors", "agents are numbers from 0, not '00'"),
        (YAML + "neighbors: {'٣': [1]}", "neighbors", "agents are numbers from 0, not '٣'"),
        (YAML + "neighbors: {}", "neighbors", "must have 1 or more entries, not 0"),
        (YAML + "name: ../x", "name", "must match pattern"),
        (YAML + "rounds: {gone_ms: 400}", "rounds", "gone_ms must be more than twice retry_ms"),
        (YAML + "objective: {kind: lasso}", "objective", "l1 > 0 goes with kind: lasso"),
        ("- 1", "", "is not a mapping"),
        ("", "", "is empty"),
    ],
)
def test_what_does_not_go_together_is_refused(text, place, message):
    found = problems(text)
    assert message in found[place][1]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("{type: constant}", "expected exactly one of alpha0 and alphas"),
        ("{type: constant, alpha0: 1, alphas: [1]}", "expected exactly one of alpha0 and alphas"),
        ("{type: constant, alpha0: 1, decay: alpha0}", "decay belongs to type: diminishing"),
        ("{type: diminishing, alpha0: 1, decay: alpha0/(k+1)^p}", "the setting p is missing"),
        ("{type: diminishing, alpha0: 1, decay: alpha0/k}", "no finite number at k = 0"),
        ("{type: diminishing, alpha0: 1, decay: k}", "must be above 0, not 0"),
        ("{type: diminishing, alpha0: 1, decay: exec(k)}", "may not stand there"),
    ],
)
def test_step_sizes_that_cannot_be(step, message):
    found = problems(f"topology: ring\nnum_agents: 5\nstep_size: {step}\n")
    assert any(message in told for _, told in found.values()), found


@pytest.mark.parametrize(
    ("overrides", "line", "message"),
    [
        ({"topology": "star"}, 2, "neighbors: agent 0 hears [1, 4] against [1, 2, 3, 4]"),
        ({"num_agents": 6}, 2, "neighbors: lists 5 agents, but num_agents is 6"),
        ({"neighbors": None, "topology": "hypercube"}, None, "topology: hypercube: needs a power"),
        ({"neighbors": None, "num_agents": None}, 1, "topology: ring: num_agents is missing"),
        ({"weight_rule__rule": "file", "weight_rule__file": "no"}, 3, "no: cannot be read"),
        (
            {"objective": {"kind": "quadratic", "centers": [[1.0]]}},
            None,
            "objective.centers: has 1",
        ),
        ({"objective": {"kind": "python", "file": "no.py"}}, None, "is no Python file"),
        ({"objective": {"kind": "svm", "file": "no.npz"}}, None, "no.npz: cannot be read as"),
        ({"step_size": {"type": "constant", "alphas": [1.0]}}, None, "step_size.alphas: has 1"),
        (
            {"constraints": [{"kind": "simplex"}], "algorithm": "projected"},
            None,
            "constraints: has",
        ),
        (
            {
                "constraint": {"kind": "ball", "radius": 1, "center": [1.0]},
                "algorithm": "projected",
            },
            None,
            "constraint: needs 2 numbers, as the estimates have",
        ),
        ({"topology": {"kind": "cycle", "graphs": ["ring"]}}, None, "but cycle has several"),
        ({"neighbors": {"0": [7], "1": [0]}}, None, "neighbors: agent 0 hears 7, but the agents"),
        ({"neighbors": {"0": [1], "2": [1]}}, None, "neighbors: the 2 agents are 0 to 1, but 1 is"),
        (
            {"neighbors": None, "topology": {"kind": "graphml", "file": "no"}},
            None,
            "no: cannot be read: No such file or directory",
        ),
        (
            {"objective": {"kind": "quadratic", "dimension": 10**18}},
            None,
            "objective: 5 agents × dimension 1,000,000,000,000,000,000 are more than",
        ),
        (
            {"objective": {"kind": "svm", "dimension": 10**6, "samples": 10**6}},
            None,
            "samples 1,000,000 × dimension 1,000,000 are more than 200,000,000 numbers",
        ),
        (
            {"topology": {"kind": "gossip", "graph": "ring"}, "weight_rule": "uniform"},
            None,
            "gossip takes the pair's average",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused_at_their_place(ring, overrides, line, message):
    found_line, told = refusal(ring, **overrides)
    assert message in told
    assert line in (None, found_line)


def test_neighbours_alone_are_a_topology_and_one_way_ones_are_refused_by_name(ring):
    assert load_problem(ring, {"topology": None}).agents == 5
    one_way = {"0": [1], "1": [0, 2], "2": [1, 3], "3": [2, 4], "4": [3, 0]}
    _, told = refusal(ring, topology=None, neighbors=one_way)
    assert "metropolis: needs an undirected graph, but 4 hears 0 and 0 does not hear 4" in told


def test_files_are_found_beside_the_settings(ring, monkeypatch, tmp_path_factory):
    folder = ring.parent
    (folder / "edges.txt").write_text("0 1\n1 2\n2 3\n3 4\n")
    np.savez(folder / "data.npz", features=np.ones((5, 2, 1)), targets=np.ones((5, 2)))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    found = load_problem(
        ring,
        {
            "neighbors": None,
            "topology": {"kind": "edge_list", "file": "edges.txt"},
            "objective": {"kind": "least_squares", "file": "data.npz"},
        },
    )
    assert found.optimum == pytest.approx([1.0])


def test_a_function_from_a_python_file(ring):
    (ring.parent / "mine.py").write_text(
        "import numpy as np\n"
        "dimension = 3\n"
        "optimum = np.full(3, 2.0)\n"
        "def value(x, agent):\n    return float(np.sum((x - agent) ** 2) / 2)\n"
        "def subgradient(x, agent):\n    return x - agent\n"
    )
    mine = {"kind": "python", "file": "mine.py"}
    one = load_problem(ring, {"objective": mine, "step_size.alpha0": 1.0})
    assert run(one).last.worst_agent_error < 3e-3
    x = np.arange(15.0).reshape(5, 3)
    only = one.objectives.only(3)
    np.testing.assert_array_equal(only.subgradients(x[3:4]), one.objectives.subgradients(x)[3:4])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "lacks value and subgradient(x, agent)"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("value = subgradient = print", "dimension must be at least 1, not None"),
    ],
)
def test_a_python_file_that_will_not_do_is_refused(ring, text, message):
    (ring.parent / "mine.py").write_text(text)
    assert message in refusal(ring, objective={"kind": "python", "file": "mine.py"})[1]


def test_what_a_python_file_does_wrong_is_told_with_the_agent(ring):
    """It gets copies, so that it cannot change estimates."""
    mine = {"objective": {"kind": "python", "file": "mine.py"}}

    def told(subgradient, more=""):
        text = f"dimension = 2\n{more}\ndef value(x, agent):\n    return 0.0\n"
        (ring.parent / "mine.py").write_text(f"{text}def subgradient(x, agent):\n{subgradient}\n")
        with pytest.raises(ConsensusError) as caught:
            run(load_problem(ring, mine))
        return str(caught.value)

    assert "subgradient of agent 0: ZeroDivisionError" in told("    return x / (1 // agent)")
    assert "agent 0 has shape (3,), not (2,)" in told("    return [1, 2, 3]")
    assert "optimum must be 2 finite numbers" in told("    return x", "optimum = [1.0]")
    assert "mine.py: SystemExit: 3" in refusal_of_exit(ring)
    (ring.parent / "mine.py").write_text(
        "dimension = 2\ndef value(x, agent):\n    return x @ x / 2\n"
        "def subgradient(x, agent):\n    x *= 1\n    x += 1\n    return x - 1\n"
    )
    found = run(load_problem(ring, {**mine, "step_size.alpha0": 1.0})).last
    assert np.linalg.norm(found.x_mean) < 1e-12


def refusal_of_exit(ring):
    (ring.parent / "mine.py").write_text("raise SystemExit(3)")
    return refusal(ring, objective={"kind": "python", "file": "mine.py"})[1]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(JobError, match="no such file"):
        load_problem(tmp_path / "none.json")


@pytest.mark.parametrize("agents", [3, "3"])
def test_a_job_file_is_a_problem_of_as_many_passes(agents):
    """1,497 images in batches of 64: 8 rounds of 3 agents are one pass, and 16 are two."""
    told = {
        "num_agents": agents,
        "data.name": "digits",
        "training.epochs": "2",
        "training.batch": "64",
        "objective.division": "classes",
    }
    one = load_problem(Path("softmax.yaml"), told)  # a job that comes with zmqps
    settings = one.settings
    assert (one.agents, settings.objective.division, settings.topology.kind) == (
        3, "classes", "ring",
    )  # fmt: skip
    assert (settings.consensus.max_iter, settings.consensus.check_every) == (16, 8)
    with pytest.raises(JobError, match=r"training\.batch"):
        load_problem(Path("softmax.yaml"), {"training.batch": "none"})
    with pytest.raises(JobError, match=r"objective\.division.*classes"):
        load_problem(Path("softmax.yaml"), {"objective.division": "sorted"})


def test_the_schema_has_every_setting_and_the_short_forms():
    schema = consensus_schema()
    assert schema["properties"].keys() == ConsensusSettings.model_fields.keys()
    assert schema["properties"].keys() >= json.loads(JSON).keys()
    assert (schema["required"], schema["additionalProperties"]) == (["step_size"], False)
    for name in ("topology", "weight_rule", "objective"):
        short, long = schema["properties"][name]["anyOf"]
        assert short == {"type": "string"} and long
        assert schema["properties"][name]["description"]
    kinds = schema["properties"]["objective"]["anyOf"][1]["discriminator"]["mapping"]
    assert "model" in kinds and "lasso" in kinds

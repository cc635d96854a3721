from pathlib import Path

import pytest

from zmqps.job import JobError
from zmqps.runs.network_file import SHIPPED, find_network, read_network


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("brokers: 0", "line 1: brokers: must be greater than or equal to 1"),
        ("links:\n  - {between: [a, b], los: 1}", "line 2: links.0.los: unknown setting"),
        ("links: [{latency_ms: 1}]", "line 1: links.0.between: is missing"),
        ("hosts: {x: [a], y: [a]}", "hosts: a is on both x and y"),
        ("costs: {gradient_ms: fast}", 'costs.gradient_ms: must be a valid number, not "fast"'),
        ("faults: [{at_s: 1, do: crush}]", 'faults.0.do: unknown: "crush"; did you mean crash?'),
        ("faults: [{do: crash, who: x}]", "faults.0.at_s: is missing"),
        ("[1]", "must be"),
    ],
)
def test_each_mistake_in_a_network_file_is_told_with_its_place(tmp_path, text, problem):
    path = tmp_path / "network.yaml"
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        read_network(path)
    assert problem in str(caught.value)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_those_that_come_with_zmqps_are_right_and_found_by_name(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert find_network(Path(path.name)) == path
    assert read_network(Path(path.name)).brokers >= 1


def test_a_file_of_ones_own_goes_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wan.yaml").write_text("brokers: 7")
    assert read_network(Path("wan.yaml")).brokers == 7


def test_a_name_that_is_none_is_told_with_those_that_are():
    with pytest.raises(JobError) as caught:
        read_network(Path("wam.yaml"))
    assert "lan.yaml, wan.yaml" in str(caught.value)


def test_every_replica_of_the_wan_has_a_site():
    network = read_network(Path("wan.yaml"))
    assert {network.host_of(f"replica-{n}") for n in range(200)} == {"paris", "tokyo", "lagos"}

"""Options and order of all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SEEDS = 3
PROCESS_TESTS = Path(__file__).parent / "process"
DEPLOY_TESTS = Path(__file__).parent / "deploy"
DEPLOY_S = 600  # what they may take on a machine that does nothing else, but for making the hosts

# No deadline: a busy machine is not a failure. In CI a run must not depend on luck.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("full", settings.get_profile("default"), max_examples=1000)
settings.register_profile("quick", settings.get_profile("default"), max_examples=20)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, help="seeds for each scenario, and each test with `seed`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds") or SEEDS))


def pytest_itemcollected(item: pytest.Item) -> None:
    if any(place(item)):
        item.add_marker(pytest.mark.xdist_group("process"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After the shuffle: tests of real processes come last, when the cores are free.

    Those of deploy/ are stories, told in the order of their files: hosts are dear.
    """
    items.sort(key=lambda item: (place(item), item.location[:2] if place(item)[0] else ()))


def place(item: pytest.Item) -> tuple[bool, bool]:
    """Whether this is a test of deploy/, and whether one of real processes."""
    return DEPLOY_TESTS in item.path.parents, PROCESS_TESTS in item.path.parents


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the tests of deploy/ took of their time."""
    some = [one for stat in terminalreporter.stats.values() for one in stat]
    reports = [report for report in some if isinstance(report, pytest.TestReport)]
    there = str(DEPLOY_TESTS.relative_to(DEPLOY_TESTS.parents[1]))
    taken = [report.duration for report in reports if report.nodeid.startswith(there)]
    if taken:
        terminalreporter.write_line(f"{there}: {sum(taken):.0f} s of {DEPLOY_S} s")

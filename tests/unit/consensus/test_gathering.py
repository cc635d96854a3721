"""Reports come in any order, twice, or not at all; what is made of them is the recursion's run."""

import numpy as np
import pytest

from tests.unit.consensus.problems import problem
from zmqps.consensus.gathering import Gathering
from zmqps.protocol.agent_messages import AgentReport


def reports(one, rounds, kind="round"):
    """Return what agents would say after some rounds: estimates that close in on the optimum."""
    for k in rounds:
        for agent in range(one.agents):
            x = one.optimum + (one.start[agent] - one.optimum) / k
            yield AgentReport(agent, k, kind, 2 * k, 32 * k), x, x


def small(**end):
    return problem(consensus={"max_iter": 100, "check_every": 10, **end})


def test_rounds_are_measured_once_all_have_reported_in_whatever_order():
    one = small()
    told = list(reports(one, (1, 2, 10)))
    told += told[:3]
    in_order = Gathering(one)
    for report in told:
        in_order.add(*report)
    assert [m.rounds for m in in_order.trace] == [0, 1, 2, 10]
    mixed = Gathering(one)
    for report in sorted(told, key=lambda one: (-one[0].agent, one[0].round)):
        mixed.add(*report)
    assert [m.rounds for m in mixed.trace] == [0, 1, 2, 10]
    run = mixed.run()
    assert run.last.worst_agent_error == in_order.run().last.worst_agent_error
    assert (run.messages, run.sent_bytes) == (20 * one.agents, 320 * one.agents)


def test_it_says_when_to_stop_and_tells_the_run_up_to_there():
    one = small(tol=0.2)
    heard = []
    gathering = Gathering(one, heard.append)
    says = [gathering.add(*report) for report in reports(one, (10, 20, 30))]
    says += [gathering.add(*report) for report in reports(one, (33,), "last")]
    run = gathering.run()
    assert run.reached_tol and run.last.worst_agent_error <= 0.2
    assert says.index(True) + 1 == one.agents * run.last.rounds // 10
    assert [m.rounds for m in heard] == [m.rounds for m in run.trace[1:]]
    assert gathering.stopped_at == 33


def test_who_is_lost_is_no_longer_waited_for():
    one = small()
    gathering = Gathering(one)
    for report, x, average in reports(one, (10,)):
        if report.agent != 2:
            gathering.add(report, x, average)
    assert len(gathering.trace) == 1
    gathering.without(2)
    assert gathering.trace[-1].rounds == 10


def test_the_first_that_left_the_bound_is_diagnosed():
    one = small()
    gathering = Gathering(one)
    for report in reports(one, (10,)):
        gathering.add(*report)
    for agent, k in ((3, 14), (4, 12), (1, 12)):
        x = np.full(one.start.shape[1], 1e300)
        gathering.add(AgentReport(agent, k, "bad", 0, 0), x, x)
    found = gathering.run().diagnosis
    assert (found.agent, found.round) == (1, 12)


def test_without_any_report_the_run_is_the_start():
    one = small()
    run = Gathering(one).run()
    assert run.last.rounds == 0 and run.x == pytest.approx(one.start)


def test_reports_of_another_problem_change_nothing():
    gathering = Gathering(problem())
    for x in (np.zeros(3), np.zeros((2, 2)), np.array(0.0)):
        assert gathering.add(AgentReport(0, 1, "round", 0, 0), x, x) is False
    assert len(gathering.trace) == 1

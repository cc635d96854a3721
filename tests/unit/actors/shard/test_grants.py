from hypothesis import given
from hypothesis import strategies as st

from zmqps.actors.shard.grants import Grants

A, B = (b"a",), (b"b",)


def test_one_gets_what_it_asks_for_if_half_of_the_rest_is_more():
    grants = Grants(100, least=10, gone_s=5)
    assert grants.attach(A, 1, 30, 0.0) == 30
    assert grants.attach(B, 2, 90, 0.0) == 35
    assert grants.total == 65


def test_nothing_is_left_when_the_budget_is_used_up():
    grants = Grants(25, least=10, gone_s=5)
    assert grants.attach(A, 1, 99, 0.0) == 12
    assert grants.attach(B, 2, 99, 0.0) == 10
    assert grants.attach((b"c",), 3, 99, 0.0) == 0


def test_asking_again_changes_nothing_even_under_a_new_routing_id():
    grants = Grants(100, least=10, gone_s=5)
    assert grants.attach(A, 1, 30, 0.0) == 30
    assert grants.attach(A, 1, 50, 1.0) == 30
    assert grants.attach(B, 1, 50, 2.0) == 30
    assert grants.total == 30
    assert not grants.heard(A, 3.0)
    assert grants.heard(B, 3.0)


def test_a_newer_incarnation_replaces_the_older():
    grants = Grants(100, least=10, gone_s=5)
    grants.attach(A, 1, 30, 0.0)
    assert grants.attach(A, 2, 20, 0.0) == 20
    assert grants.total == 20


def test_silence_frees_and_traffic_keeps():
    grants = Grants(100, least=10, gone_s=5)
    grants.attach(A, 1, 30, 0.0)
    grants.attach(B, 2, 20, 0.0)
    grants.heard(A, 4.0)
    grants.expire(6.0)
    assert grants.total == 30
    assert not grants.heard(B, 6.0)


@given(
    st.integers(1, 1000),
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(0, 2000), st.booleans())),
)
def test_the_sum_is_never_above_the_budget(budget, least, script):
    grants = Grants(budget, least, gone_s=3)
    for now, (peer, incarnation, wanted, leave) in enumerate(script):
        key = (bytes([peer]),)
        if leave:
            grants.detach(key)
        else:
            credit = grants.attach(key, incarnation, wanted, now)
            assert credit == 0 or credit >= least
        grants.expire(now)
        grants.check_invariants()

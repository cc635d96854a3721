from zmqps.actors.shard.roster import DEPARTED_MAX, LiveReplicas


def test_the_living_are_taken_and_those_who_left_are_stale():
    replicas = LiveReplicas()
    assert replicas.replace((3, 5)) == []
    assert replicas.replace((5, 7)) == [3]
    assert replicas.refusal(5) is None
    assert replicas.refusal(3) == "stale_incarnation"


def test_one_that_was_never_seen_may_be_about_to_come_even_below_others():
    replicas = LiveReplicas()
    replicas.replace((6,))
    assert replicas.refusal(5) == "unknown_member"
    assert replicas.refusal(7) == "unknown_member"
    replicas.replace((5, 6))
    assert replicas.refusal(5) is None


def test_those_who_left_are_remembered_within_bounds_and_never_taken():
    replicas = LiveReplicas()
    for incarnation in range(1, DEPARTED_MAX + 100):
        replicas.replace((incarnation,))
    assert replicas.refusal(1) == "unknown_member"
    assert replicas.refusal(DEPARTED_MAX) == "stale_incarnation"

"""A replica of several stages is one to the coordinator, and counts only as a whole."""

from dataclasses import replace

from tests.unit.actors.coordinator.coordinator_rig import REPORT, Rig, declare
from zmqps.protocol.messages import Declared, Release, Restored, Roster, Routes


def joined(rig, stages=3, **training):
    """A replica and its further stages, none of which has declared its model yet."""
    others = [rig.join("stage") for _ in range(stages - 1)]
    leader = rig.join("replica")
    leader.say(replace(declare(**training), stages=stages))
    return leader, others


def declares(leader, stage, **training):
    stage.say(
        replace(declare(**training), replica=leader.incarnation, stages=leader_stages(leader))
    )


def leader_stages(leader):
    return next(m.stages for m in leader.rig.core.members.of("replica") if m.peer == leader.peer)


def rosters(rig):
    return [shard.got(Roster)[-1] for shard in rig.shards]


def test_a_replica_is_released_when_all_its_stages_are_there_and_all_may_push():
    rig = Rig().base()
    leader, (first, second) = joined(rig, epochs=10)
    declares(leader, first, epochs=10)
    assert not leader.got(Release)
    declares(leader, second, epochs=10)
    assert len(leader.got(Release)) == 1
    assert not first.got(Release)
    whole = (leader.incarnation, first.incarnation, second.incarnation)
    for roster in rosters(rig):
        assert roster.incarnations == whole
        assert roster.replicas == (leader.incarnation,) * 3
    for stage in (first, second):
        assert stage.got(Declared)
        assert stage.got(Routes)[-1].ranges


def test_when_a_stage_is_lost_nobody_of_its_replica_may_push():
    rig = Rig().base()
    other = rig.replica()
    leader, (stage,) = joined(rig, 2, epochs=10)
    declares(leader, stage, epochs=10)
    assert all(len(roster.incarnations) == 3 for roster in rosters(rig))
    stage.leave("killed")
    for roster in rosters(rig):
        assert roster.incarnations == (other.incarnation,)
        assert roster.replicas == ()


def test_stages_are_no_replicas_in_figures_and_status():
    rig = Rig().base()
    leader, (stage,) = joined(rig, 2, epochs=10)
    declares(leader, stage, epochs=10)
    tree = rig.status()
    assert [replica["name"] for replica in tree["replicas"]] == [leader.name]
    about = {member["name"]: member for member in tree["members"]}
    assert about[stage.name]["replica"] == leader.incarnation
    assert stage.name == "stage-0"


def test_a_stage_is_told_which_of_its_pushes_a_restored_shard_has():
    rig = Rig().base()
    leader, (stage,) = joined(rig, 2, epochs=10)
    declares(leader, stage, epochs=10)
    shard = rig.shards[0]
    shard.leave("killed")
    rig.join("shard")
    assert stage.got(Restored)
    assert leader.got(Restored)


def test_pushes_of_stages_do_not_lessen_the_share_of_their_replica():
    rig = Rig().base()
    other = rig.replica()
    leader, (stage,) = joined(rig, 2, epochs=10)
    declares(leader, stage, epochs=10)
    for replica in (other, leader):
        replica.train(1, images=10)
    pushes = ((other.incarnation, 1), (leader.incarnation, 3), (stage.incarnation, 3))
    rig.shards[0].say(replace(REPORT, pushes=pushes))
    shares = {r["name"]: r["share_of_pushes"] for r in rig.status()["replicas"]}
    assert shares == {other.name: 0.25, leader.name: 0.75}

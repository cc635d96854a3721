"""Key folders: what is made is read again, and nothing that is not right is."""

import pytest

from zmqps.actors.membership import LINK
from zmqps.actors.replica.carrier import LINK as BROKER
from zmqps.actors.shard.core import FOLLOWER
from zmqps.runtime.addresses import PlaceError
from zmqps.runtime.security_keys import (
    ROLES,
    Allowed,
    join_name,
    make_keys,
    read_keys,
    role_of,
    split_name,
)


@pytest.fixture
def folder(tmp_path):
    make_keys(tmp_path / "keys", ROLES)
    return tmp_path / "keys"


def test_what_is_made_is_private_and_can_be_read_for_each_role(folder):
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    for role in ROLES:
        keys = read_keys(folder, role)
        assert keys.name == role
        assert keys.allowed.name(keys.public.decode()) == role
        assert keys.secret.decode() not in repr(keys)
        assert keys.secret.decode() not in (folder / "allowed").read_text()


def test_keys_that_are_there_are_kept_and_renewed_ones_are_allowed_beside_the_old(folder):
    before = read_keys(folder, "shard")
    assert make_keys(folder, ["shard", "shard-a"]) == ["shard-a"]
    assert read_keys(folder / "shard.key", "shard").public == before.public
    assert read_keys(folder, "shard").public == before.public
    assert make_keys(folder, ["shard"], renew=True) == ["shard"]
    after = read_keys(folder, "shard")
    assert after.public != before.public
    assert after.allowed.keys("shard") == [before.public.decode(), after.public.decode()]
    assert after.of_peer("shard") == after.public
    assert read_keys(folder / "shard-a.key", "shard").name == "shard-a"


def test_allowed_is_read_again_when_it_has_changed(folder):
    keys = read_keys(folder, "shard")
    make_keys(folder, ["replica-a"])
    new = read_keys(folder / "replica-a.key", "replica")
    assert keys.allowed.name(new.public.decode()) == ""
    keys.allowed.refresh()
    assert keys.allowed.name(new.public.decode()) == "replica-a"
    file = folder / "allowed"
    file.write_text(file.read_text().replace(new.public.decode(), "damaged"))
    keys.allowed.refresh()
    assert "line" in keys.allowed.problem
    assert keys.allowed.name(new.public.decode()) == "replica-a"  # the last right one counts


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda f: (f / "shard.key").chmod(0o640), r"others may use it \(mode 0640\)"),
        (lambda f: f.chmod(0o750), r"others may use it \(mode 0750\)"),
        (lambda f: (f / "shard.key").unlink(), "No such file .*zmqps keys .* shard"),
        (lambda f: (f / "allowed").unlink(), "No such file"),
        (lambda f: (f / "shard.key").write_text("shard x y\n"), "is no key file"),
        (
            lambda f: (f / "shard.key").write_text((f / "replica.key").read_text()),
            "is the key of 'replica', which is no shard's",
        ),
        (lambda f: (f / "allowed").write_text("shard x\n"), "line 1: must be ROLE"),
        (
            lambda f: (f / "allowed").write_text(f"shard {'1' * 40}\nreplica {'1' * 40}\n"),
            "line 2: shard has the same key",
        ),
        (
            lambda f: (f / "shard.key").write_text(
                " ".join(["shard", *(f / "replica.key").read_text().split()[1:2], "1" * 40])
            ),
            "do not belong together",
        ),
    ],
)
def test_what_is_not_right_is_refused(folder, damage, complaint):
    damage(folder)
    with pytest.raises(PlaceError, match=complaint):
        read_keys(folder, "shard")


@pytest.mark.parametrize(
    "name", ["", "nobody", "shard-", "shard a", "shard/../x", "shard-" + 41 * "a"]
)
def test_a_name_is_a_role_or_a_role_and_more(tmp_path, name):
    assert role_of(name) == ""
    with pytest.raises(PlaceError, match="is no name"):
        make_keys(tmp_path / "keys", [name])


def test_a_folder_that_others_may_use_gets_no_keys(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(PlaceError, match="others may use it"):
        make_keys(tmp_path / "open", ["shard"])


def test_a_list_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(PlaceError, match="No such file"):
        Allowed(tmp_path / "none")


def test_an_endpoint_may_name_whose_key_is_there():
    assert join_name("shard-a", "tcp://h:1") == "tcp://shard-a@h:1"
    assert split_name("tcp://shard-a@h:1") == ("shard-a", "tcp://h:1")
    assert join_name("shard", "tcp://h:1") == "tcp://h:1"
    for endpoint in ("tcp://[::1]:1", "ipc:///a@b"):
        assert split_name(endpoint) == ("", endpoint)
    assert join_name("shard-a", "ipc:///a") == "ipc:///a"


@pytest.mark.parametrize(
    ("link", "role"), [(LINK, "coordinator"), (BROKER, "broker"), (FOLLOWER, "shard")]
)
def test_the_first_word_of_a_link_says_whose_key_is_expected_there(link, role):
    assert role_of(link.partition("-")[0]) == role

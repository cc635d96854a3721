from pathlib import Path

import pytest

from zmqps.places import find_place
from zmqps.runtime.addresses import PlaceError, Told, read_endpoint


def place(*, is_coordinator=False, environ=None, host="alpha", **options):
    addresses = {"10.0.0.1": "10.0.0.9", "beta": "192.168.1.4", "[fd00::1]": "[fd00::2]"}
    return find_place(
        is_coordinator=is_coordinator,
        options=options,
        environ=environ or {},
        host=host,
        facing=addresses.__getitem__,
    )


def cluster_file(folder: Path, text: str) -> str:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("alpha", "tcp://alpha:7077"),
        ("alpha.lan:9", "tcp://alpha.lan:9"),
        ("10.0.0.1", "tcp://10.0.0.1:7077"),
        (" tcp://10.0.0.1:65535 ", "tcp://10.0.0.1:65535"),
        ("tcp://alpha", "tcp://alpha:7077"),
        ("::1", "tcp://[::1]:7077"),
        ("[::1]", "tcp://[::1]:7077"),
        ("[FD00::1]:9", "tcp://[fd00::1]:9"),
        ("ipc:///run/z", "ipc:///run/z"),
    ],
)
def test_friendly_forms(text, endpoint):
    assert read_endpoint(Told("--coordinator", text), 7077) == endpoint


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("", "is no address"),
        (5, "is no address"),
        ("alpha:beta", "is no address"),
        ("al pha", "is no address"),
        ("-alpha", "is no address"),
        ("udp://alpha:1", "unknown transport"),
        ("alpha:0", "port 0, allowed: 1 to 65535"),
        ("alpha:65536", "port 65536, allowed: 1 to 65535"),
        ("10.0.0.256", "is no IPv4 address"),
        ("1:2:3", "is no IPv6 address"),
        ("[alpha]:1", "is no IPv6 address"),
        ("*:7", "is no address to call"),
        ("0.0.0.0", "is no address to call"),
        ("ipc://relative", "absolute path"),
        ("ipc:///" + "x" * 107, "absolute path"),
    ],
)
def test_an_error_names_place_value_and_what_is_allowed(value, complaint):
    with pytest.raises(PlaceError, match=complaint) as caught:
        read_endpoint(Told("ZMQPS_COORDINATOR", value), 7077)
    assert str(caught.value).startswith(f"ZMQPS_COORDINATOR: {str(value)!r}: ")


def test_without_anything_told_all_is_on_loopback():
    assert place().coordinator == "tcp://127.0.0.1:7077"
    assert place().bind == ("tcp://127.0.0.1:0",)
    assert place().advertise is None and place().run_dir is None
    assert place(is_coordinator=True).bind == ("tcp://127.0.0.1:7077",)


def test_options_go_before_variables_and_these_before_the_cluster_file(tmp_path):
    file = cluster_file(tmp_path, "coordinator: c:3\nrun_dir: /tmp/c\nhosts: {alpha: {bind: c}}")
    environ = {"ZMQPS_COORDINATOR": "b:2", "ZMQPS_BIND": "b", "ZMQPS_CLUSTER": file}
    told = place(environ=environ, coordinator="a:1")
    assert told.coordinator == "tcp://a:1"
    assert told.bind == ("tcp://b:0",)
    assert told.run_dir == Path("/tmp/c")
    del environ["ZMQPS_BIND"]
    assert place(environ=environ).bind == ("tcp://c:0",)
    assert place(environ=environ).coordinator == "tcp://b:2"
    assert place(environ={"ZMQPS_CLUSTER": file}).coordinator == "tcp://c:3"


def test_the_others_bind_where_the_coordinator_is_reached_from():
    assert place(coordinator="10.0.0.1").bind == ("tcp://10.0.0.9:0",)
    assert place(coordinator="beta:5").bind == ("tcp://192.168.1.4:0",)
    assert place(coordinator="fd00::1").bind == ("tcp://[fd00::2]:0",)
    assert place(coordinator="ipc:///run/z").bind == ("tcp://127.0.0.1:0",)
    assert place(coordinator="10.0.0.1", is_coordinator=True).bind == ("tcp://10.0.0.1:7077",)


def test_a_coordinator_that_no_route_leads_to_is_an_error():
    def unknown(host):
        raise OSError(-2, f"{host} is not known")

    with pytest.raises(
        PlaceError, match=r"--coordinator: 'gamma': cannot be reached from here: gamma is"
    ):
        find_place(options={"coordinator": "gamma"}, environ={}, host="alpha", facing=unknown)


def test_this_machine_faces_itself():
    options = {"coordinator": "127.0.0.2"}
    assert find_place(options=options, environ={}).bind == ("tcp://127.0.0.1:0",)


def test_several_addresses_can_be_bound():
    both = ("tcp://127.0.0.1:0", "ipc:///run/z")
    assert place(bind=["127.0.0.1", "ipc:///run/z"]).bind == both
    assert place(environ={"ZMQPS_BIND": "127.0.0.1, ipc:///run/z"}).bind == both
    assert place(is_coordinator=True, bind=["127.0.0.1:0"]).bind == ("tcp://127.0.0.1:0",)


def test_a_host_that_binds_everything_is_advertised_by_its_name():
    assert place(bind=["*"]).advertise == "alpha"
    assert place(bind=["0.0.0.0:5"]).advertise == "alpha"
    assert place(bind=["*"], advertise="alpha.lan").advertise == "alpha.lan"
    with pytest.raises(PlaceError, match="without a port"):
        place(advertise="alpha:5")


def test_a_cluster_file_is_read_for_this_host(tmp_path):
    file = cluster_file(
        tmp_path,
        """
        coordinator: 10.0.0.1:7
        hosts:
          alpha: {bind: [10.0.0.2, "ipc:///run/z"], advertise: alpha.lan}
          beta: {bind: 10.0.0.3}
        """,
    )
    here = place(cluster=file, host="alpha.lan")
    assert here.bind == ("tcp://10.0.0.2:0", "ipc:///run/z")
    assert here.advertise == "alpha.lan"
    assert place(cluster=file, host="beta").bind == ("tcp://10.0.0.3:0",)
    assert place(cluster=file, host="gamma").bind == ("tcp://10.0.0.9:0",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("coordinator: [a, b]", r"cluster.yaml: coordinator: .*is no address"),
        ("coordinator: 'a:x'", r"cluster.yaml: coordinator: 'a:x': is no address"),
        (
            "coordinater: a",
            "'coordinater': is no setting; allowed: coordinator, run_dir, keys, insecure, hosts",
        ),
        ("hosts: {alpha: {bnd: a}}", r"hosts.alpha: 'bnd': is no setting; allowed: bind"),
        ("hosts: {alpha: {bind: 5}}", r"hosts.alpha.bind: .*is no address"),
        ("hosts: {alpha: {bind: []}}", r"hosts.alpha.bind: .*is no address"),
        ("hosts: {beta: 5}", r"hosts.beta: '5': is no mapping"),
        ("hosts: [alpha]", r"hosts: .*is no mapping; allowed: host names"),
        ("- a", r"is no mapping; allowed: coordinator"),
        ("coordinator: {", r"--cluster: .*line 1: column"),
        ("coordinator: a\ncoordinator: b", r"stands here twice, in lines 1 and 2"),
    ],
)
def test_a_wrong_cluster_file_is_told(tmp_path, text, complaint):
    with pytest.raises(PlaceError, match=complaint):
        place(cluster=cluster_file(tmp_path, text))


def test_a_cluster_file_that_is_not_there():
    with pytest.raises(PlaceError, match="--cluster: '/no/file': cannot be read: No such file"):
        place(cluster="/no/file")


def test_a_run_folder_must_be_one(tmp_path):
    assert place(run_dir=tmp_path).run_dir == tmp_path
    (tmp_path / "file").touch()
    with pytest.raises(PlaceError, match=r"--run-dir: .*is not a folder"):
        place(run_dir=tmp_path / "file")

import os
import socket

from zmqps.runtime import ports


def test_the_holder_of_a_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ports.holder(port).startswith(f"process {os.getpid()} (")
    assert ports.holder(port) == "a process that cannot be seen from here"

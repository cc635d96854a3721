"""Which of this machine's addresses faces another host."""

import socket


def facing(host: str) -> str:
    """Return this machine's address on the way to `host`, an IPv6 one in brackets.

    Nothing is sent. Raises OSError for a host that is unknown, or that no route leads to.
    """
    found = socket.getaddrinfo(host.strip("[]"), 1, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        own = str(probe.getsockname()[0])
    return f"[{own}]" if family == socket.AF_INET6 else own

"""wan.py BRIDGE VETH TAP DELAY_MS JITTER_MS: a long cable, for kernels without netem.

It stands between the host's veth (a raw packet socket) and a tap that takes its port of the bridge;
each packet waits in a queue, each way, and keeps its place in the order. Headers of virtio-net go
through on both sides, so that large segments and unfinished checksums survive. It prints `ready`
and its process number when it stands, and on SIGTERM puts the veth back.
"""

import fcntl
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

# From linux/if_tun.h and linux/if_packet.h; Python has no names for them.
TUNSETIFF, TUNSETVNETHDRSZ, TUNSETOFFLOAD = 0x400454CA, 0x400454D8, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
CHECKSUMS, TSO4, TSO6 = 0x01, 0x02, 0x04
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_RCVBUFFORCE, ETH_P_ALL = 33, 3
VNET_HDR_BYTES, PACKET_BYTES_MAX, AT_ONCE = 10, 131072, 64


class Way:
    """One direction of the cable."""

    def __init__(self, read: Callable[[], bytes], write: Callable[[bytes], object]) -> None:
        self.read = read
        self.write = write
        self._packets: deque[tuple[float, bytes]] = deque()

    def take(self, delay: Callable[[], float]) -> None:
        """Read what has come, and note when each packet is due; none overtakes another."""
        for _ in range(AT_ONCE):
            try:
                packet = self.read()
            except OSError:  # no more for now, or the cable is pulled
                return
            last = self._packets[-1][0] if self._packets else 0.0
            self._packets.append((max(last, monotonic() + delay()), packet))

    def give(self) -> float:
        """Write what is due; the answer is when there is more to do."""
        while self._packets and self._packets[0][0] <= monotonic():
            with suppress(OSError):  # a full queue or a pulled cable: the packet is lost
                self.write(self._packets.popleft()[1])
        return self._packets[0][0] if self._packets else monotonic() + 0.5


def open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(tap, TUNSETVNETHDRSZ, struct.pack("i", VNET_HDR_BYTES))
    fcntl.ioctl(tap, TUNSETOFFLOAD, CHECKSUMS | TSO4 | TSO6)
    return tap


def open_packets(veth: str) -> socket.socket:
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    packets.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    packets.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    packets.bind((veth, ETH_P_ALL))
    packets.setblocking(False)
    return packets


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)


def main() -> None:
    bridge, veth, tap_name = sys.argv[1:4]
    delay_s, jitter_s = (float(ms) / 1000 for ms in sys.argv[4:6])
    tap = open_tap(tap_name)
    quiet = f"net.ipv6.conf.{veth}.disable_ipv6=1 net.ipv6.conf.{tap_name}.disable_ipv6=1"
    run(f"sysctl -qw net.ipv4.conf.{veth}.arp_ignore=8 {quiet}")
    packets = open_packets(veth)
    run(f"ip link set {veth} nomaster")
    run(f"ip link set {tap_name} master {bridge} up")
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))

    ways = {
        packets: Way(lambda: packets.recv(PACKET_BYTES_MAX), lambda data: os.write(tap, data)),
        tap: Way(lambda: os.read(tap, PACKET_BYTES_MAX), packets.send),
    }
    sys.stdout.write(f"ready {os.getpid()}\n")
    sys.stdout.flush()
    try:
        while not asked:
            due = min(way.give() for way in ways.values())
            for end in select.select(list(ways), [], [], max(0.0, due - monotonic()))[0]:
                ways[end].take(lambda: delay_s + random.uniform(-jitter_s, jitter_s))
    finally:
        run(f"ip link set {veth} master {bridge}")
        os.close(tap)


if __name__ == "__main__":
    main()

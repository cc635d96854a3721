"""The virtual network: what ZeroMQ over TCP does with messages, and what may befall them.

What cores rely on: messages of one connection arrive in order, or not at all; a DEALER queues while
its peer is away, connects again by itself, and loses what was on its way when a connection breaks;
a ROUTER knows the peers that are connected, by their routing ids, and takes no message to another;
an id that is in use is ignored when it comes a second time; a link that is closed drops what it
still holds. Loss, duplication and reordering of single messages are worse than TCP's: they are
there to show that the protocol above stands them. Messages over a partition are held until it
heals, as TCP does. A half-open connection, and one to a host that died without a word, swallows
messages, and no end that believes in it is told.

Each message draws its faults from the one generator of the run, independently of all others.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from zmqps.simulator.clock import Clock
from zmqps.simulator.connection import Connection, Disturbance, End, Packet, Side
from zmqps.simulator.settings import Ends, LinkSettings, NetworkSettings, fits

RECONNECT_S = 0.1
"""ZeroMQ's own interval."""

LINGER_S = 0.5
"""As `runtime.transport.LEAVE_LINGER_MS`."""

OVERTAKEN_S = 0.2
"""A message that is reordered takes up to this much longer, besides 10 latencies."""

RETRANSMIT_S = 0.2
"""What was held by a partition comes up to this long after it has healed."""


UNTOLD_S = 900.0
"""After this a kernel gives up a connection on which nothing was acknowledged (15 retries)."""


class WrittenAfterSendingError(AssertionError):
    """An array was written after it had been given away."""


class Network:
    """All connections of the cluster. `bound` are the endpoints that somebody listens on."""

    def __init__(self, clock: Clock, settings: NetworkSettings, random: Random):
        self.clock = clock
        self.settings = settings
        self.random = random
        self.bound: dict[str, End] = {}
        self.disturbances: list[Disturbance] = []
        self.connections: dict[int, Connection] = {}
        self.sent = self.lost = self.doubled = self.overtaken = 0
        self._free_at: dict[tuple[str, str], float] = {}
        self._opened = 0

    # --- What shells ask for ----------------------------------------------------------------------

    def open(self, dealer: End, link: str, endpoint: str, identity: bytes) -> Connection:
        """Connect a DEALER."""
        connection = Connection(dealer, link, endpoint, identity)
        self._opened += 1
        self.connections[self._opened] = connection
        self.clock.after(0.0, self._attempt, connection, 0)
        return connection

    def send_from_dealer(self, connection: Connection, frames: Sequence[Any]) -> None:
        """Send a message, or queue it while the peer is away."""
        if connection.state == "connecting":
            connection.queue.append(_copied(frames))
        elif connection.state == "up":
            self._transmit(connection, frames, to_router=True)

    def send_from_router(self, router: End, frames: Sequence[Any]) -> bool:
        """Send a message to the peer named by its first frame; False when there is none."""
        connection = router.peers.get(bytes(frames[0]))
        if connection is None:
            return False
        self._transmit(connection, frames[1:], to_router=False)
        return True

    def close(self, connection: Connection, linger_s: float = 0.0) -> None:
        """Close a DEALER's side; what has not departed by then is dropped."""
        if connection.state == "closed":
            return
        was_up = connection.state == "up"
        connection.state, connection.ends_at = "closed", self.clock.now + linger_s
        connection.queue.clear()
        if was_up and connection.listener is not None and not connection.severed:
            last = min(connection.last_at[True], connection.ends_at)
            seen_at = max(last, self.clock.now + self._latency(connection))
            self.clock.at(seen_at, self._forget, connection, connection.generation)

    def leave(self, end: End, *, killed: bool) -> None:
        """Close all that an end has: it is gone. A killed one may lose what is on its way."""
        self._unbind(end)
        for connection in end.peers.copy().values():
            self.break_up(connection)
        for connection in [c for c in self._live() if c.dealer is end]:
            if killed and self.random.random() < 0.5:
                connection.generation += 1
                if connection.state == "up":
                    delay_s = self._latency(connection)
                    self.clock.after(delay_s, self._forget, connection, connection.generation)
                connection.state = "closed"
            self.close(connection, 0.0 if killed else LINGER_S)

    def vanish(self, end: End) -> None:
        """Leave an end's peers in the belief that it is there: its host died without a word."""
        self._unbind(end)
        for connection in self._live():
            if end in (connection.dealer, connection.listener):
                if connection.state == "up":
                    self.sever(connection, "both", UNTOLD_S)
                elif connection.dealer is end:
                    self.close(connection)
                else:
                    self.break_up(connection)

    def come_back(self, host: str) -> None:
        """Let a host that died without a word answer again: it knows nothing of its connections."""
        for connection in self._live():
            ends = [connection.dealer, connection.listener]
            dead = [end for end in ends if end is not None and not end.process.alive]
            connection.resets |= any(end.process.host == host for end in dead)

    def _unbind(self, end: End) -> None:
        for endpoint in [name for name, router in self.bound.items() if router is end]:
            del self.bound[endpoint]

    # --- Faults -----------------------------------------------------------------------------------

    def disturb(self, disturbance: Disturbance) -> None:
        """Begin to disturb messages."""
        self.disturbances.append(disturbance)

    def calm(self, disturbance: Disturbance) -> None:
        """End a disturbance; what it held is sent again."""
        self.disturbances.remove(disturbance)
        for connection in self._live():
            held, connection.held = connection.held, []
            for packet in held:
                self._depart(connection, packet, self.random.random() * RETRANSMIT_S)

    def between(self, ends: Ends) -> list[Connection]:
        """Return the connections that stand between processes."""
        return [
            connection
            for connection in self._live()
            if connection.listener is not None
            and not connection.severed
            and fits(ends, connection.dealer.process.name, connection.listener.process.name)
        ]

    def reset(self, between: Ends) -> int:
        """Break the connections between processes; return how many."""
        broken = self.between(between)
        for connection in broken:
            self.break_up(connection)
        return len(broken)

    def half_open(self, between: Ends, side: Side, for_s: float) -> int:
        """Let a connection between processes, which is drawn, be open on one side only."""
        found = [connection for connection in self.between(between) if connection.state == "up"]
        if found:
            self.sever(found[self.random.randrange(len(found))], side, for_s)
        return len(found[:1])

    def sever(self, connection: Connection, side: Side, for_s: float) -> None:
        """Let nothing pass any more; the side that believes in it finds out after a while."""
        router, ghost = connection.listener, connection
        assert router is not None
        assert connection.state == "up"
        connection.generation += 1
        connection.held.clear()
        if side == "router":
            ghost = replace(connection, held=[], queue=deque(), severed=True)
            router.peers[connection.identity] = ghost
            self._opened += 1
            self.connections[self._opened] = ghost
            self.break_up(connection)
        else:
            connection.severed = True
            if side == "dealer":
                router.peers.pop(connection.identity, None)
        again = side != "router"
        self.clock.after(for_s, self._find_out, ghost, ghost.generation, again)

    def _find_out(self, connection: Connection, generation: int, again: bool) -> None:
        """Let the ends of a severed connection know; unless it is a ghost, it is made anew."""
        if connection.severed and connection.generation == generation:
            if not again:
                connection.state = "closed"
            self.break_up(connection)

    def break_up(self, connection: Connection) -> None:
        """Break a connection: what is on its way is lost, and the DEALER connects again."""
        connection.generation += 1
        connection.severed = connection.resets = False
        connection.held.clear()
        listener, connection.listener = connection.listener, None
        if listener is not None and listener.peers.get(connection.identity) is connection:
            del listener.peers[connection.identity]
        if connection.state != "closed" and connection.dealer.process.alive:
            connection.state = "connecting"
            self.clock.after(RECONNECT_S, self._attempt, connection, connection.generation)
        else:
            connection.state = "closed"

    # --- Connections ------------------------------------------------------------------------------

    def _live(self) -> list[Connection]:
        for number in [n for n, c in self.connections.items() if c.state == "closed"]:
            connection = self.connections[number]
            if connection.listener is None and not connection.held:
                del self.connections[number]
        return list(self.connections.values())

    def _attempt(self, connection: Connection, generation: int) -> None:
        """Connect, if somebody listens there and can be reached; else try again a while later."""
        if connection.state != "connecting" or connection.generation != generation:
            return
        listener = self.bound.get(connection.endpoint)
        if listener is None or not self._reachable(connection.dealer, listener):
            self.clock.after(RECONNECT_S, self._attempt, connection, generation)
            return
        connection.listener = listener
        delay_s = 3 * self._latency(connection)  # TCP's handshake and ZeroMQ's
        self.clock.after(delay_s, self._established, connection, generation, listener)

    def _established(self, connection: Connection, generation: int, listener: End) -> None:
        if connection.state != "connecting" or connection.generation != generation:
            return
        if self.bound.get(connection.endpoint) is not listener or not self._reachable(
            connection.dealer, listener
        ):
            connection.listener = None
            self.clock.after(RECONNECT_S, self._attempt, connection, generation)
            return
        queue, connection.queue = connection.queue, deque()
        if connection.identity in listener.peers:
            connection.state = "ignored"
            return
        listener.peers[connection.identity] = connection
        connection.state = "up"
        for frames in queue:
            self._transmit(connection, frames, to_router=True)

    def _reachable(self, dealer: End, listener: End) -> bool:
        a, b = dealer.process, listener.process
        if not (a.running and b.running):
            return False
        return not (self._cut(a.name, b.name) or self._cut(b.name, a.name))

    def _forget(self, connection: Connection, generation: int) -> None:
        """Let the ROUTER notice that a peer has closed its connection."""
        listener = connection.listener
        if connection.generation != generation or listener is None:
            return
        if listener.peers.get(connection.identity) is connection:
            del listener.peers[connection.identity]
        connection.listener = None

    def _latency(self, connection: Connection) -> float:
        assert connection.listener is not None
        here, there = connection.dealer.process.host, connection.listener.process.host
        return self.settings.link(here, there).latency_ms / 1e3

    # --- Messages ---------------------------------------------------------------------------------

    def _cut(self, source: str, target: str) -> bool:
        return any(
            one.cut and fits(one.between, source, target, one_way=one.one_way)
            for one in self.disturbances
        )

    def _faults(self, source: str, target: str, link: LinkSettings) -> list[LinkSettings]:
        return [link] + [
            one.link
            for one in self.disturbances
            if not one.cut and fits(one.between, source, target, one_way=one.one_way)
        ]

    def _transmit(self, connection: Connection, frames: Sequence[Any], *, to_router: bool) -> None:
        packet = Packet(to_router, _copied(frames), frames, connection.generation)
        self.sent += 1
        self._depart(connection, packet, 0.0)

    def _depart(self, connection: Connection, packet: Packet, delay_s: float) -> None:
        """Draw what happens to a message, and when it arrives."""
        listener = connection.listener
        if listener is None:
            return
        if connection.severed:
            self.lost += 1
            if connection.resets:
                answered_s = 2 * self._latency(connection)
                self.clock.after(
                    answered_s, self._find_out, connection, connection.generation, True
                )
            return
        source, target = connection.dealer.process, listener.process
        if not packet.to_router:
            source, target = target, source
        if self._cut(source.name, target.name):
            connection.held.append(packet)
            return
        link = self.settings.link(source.host, target.host)
        faults = self._faults(source.name, target.name, link)
        chance = self.random.random
        lost, doubled, late = (chance() for _ in range(3))
        if lost < max(fault.loss for fault in faults):
            self.lost += 1
            return
        latency_ms = sum(fault.latency_ms for fault in faults)
        jitter_ms = sum(fault.jitter_ms for fault in faults)
        overtaken = late < max(fault.reorder for fault in faults)
        sent_s = delay_s + self._on_the_line(source.host, target.host, link, packet)
        packet.departs_at = self.clock.now + sent_s
        for copy in range(1 + (doubled < max(fault.duplicate for fault in faults))):
            self.doubled += copy
            arrives_at = packet.departs_at + (latency_ms + jitter_ms * chance()) / 1e3
            if overtaken:
                self.overtaken += 1
                arrives_at += chance() * (OVERTAKEN_S + latency_ms / 100)
            else:
                arrives_at = max(arrives_at, connection.last_at[packet.to_router])
                connection.last_at[packet.to_router] = arrives_at
            self.clock.at(arrives_at, self._arrive, connection, packet)

    def _on_the_line(self, source: str, target: str, link: LinkSettings, packet: Packet) -> float:
        """Return how long it takes until a message has left.

        One goes after another: on the link, out of the one host's card and into the other's.
        """
        rates = {(source, target): link.mbit_per_s}
        if source != target and self.settings.cards:
            rates |= {(source, ""): self.settings.card(source)}
            rates |= {("", target): self.settings.card(target)}
        limits = {place: rate for place, rate in rates.items() if rate is not None}
        if not limits:
            return 0.0
        megabits = sum(map(len, packet.frames)) * 8e-6
        free_at = self._free_at
        begins_at = max(self.clock.now, *(free_at.get(place, 0.0) for place in limits))
        for place, rate in limits.items():
            free_at[place] = begins_at + megabits / rate
        return begins_at + megabits / min(limits.values()) - self.clock.now

    def _arrive(self, connection: Connection, packet: Packet) -> None:
        if any(a != bytes(b) for a, b in zip(packet.frames, packet.lent, strict=True)):
            raise WrittenAfterSendingError(f"by {connection.dealer.process.name} or its peer")
        listener = connection.listener
        if connection.generation != packet.generation or listener is None:
            self.lost += 1
        elif not packet.to_router:
            if connection.state == "up":
                connection.dealer.arrive(connection.link, packet.frames)
        elif connection.state == "up" or packet.departs_at <= connection.ends_at:
            listener.arrive("front", [connection.identity, *packet.frames])


def _copied(frames: Sequence[Any]) -> list[bytes]:
    return [bytes(frame) for frame in frames]

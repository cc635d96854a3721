"""Who may say what to an agent: the key that a message came with, and the agent that it names."""

from typing import Final

from zmqps.protocol.events import MalformedReceived
from zmqps.protocol.messages import Body, RefusedReport

SHARED: Final = ("", "agent")
"""No key, or one that all agents have: such a peer may be any of them."""


def wrong_key(actor: str, body: Body) -> str:
    """Say why a message may not come with the key of `actor`; empty if it may.

    `agent-3` speaks for agent 3 and no other; a watcher's key for none.
    """
    agent = getattr(body, "agent", None)
    if actor in SHARED or (
        actor.startswith("agent-") if agent is None else actor == f"agent-{agent}"
    ):
        return ""
    whose = "an agent" if agent is None else f"agent {agent}"
    return f"the key of {actor} is not that of {whose}"


def turned_away(report: RefusedReport) -> MalformedReceived:
    """Return the line for the log about those who were not let in."""
    words = ", ".join(f"{reason} {count}" for reason, count in report.reasons)
    count = sum(count for _, count in report.reasons)
    return MalformedReceived("front", f"turned away: {words}", count)

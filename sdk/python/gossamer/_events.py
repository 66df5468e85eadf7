"""The events of a run, for programs that want to know them: the differences between one look at the run and the next.

The run looks from step() and wait(), in the thread that trains, at most every LOOK_INTERVAL_S; nothing here has a
thread.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterator

if TYPE_CHECKING:
    from ._run import RunInfo

# One look takes some microseconds, so it costs almost nothing. A program does not need to hear of an event sooner.
LOOK_INTERVAL_S = 0.25


class EventKind(enum.Enum):
    """The kind of an event."""

    ATTACHED = "attached"  # a daemon has taken the run
    DETACHED = "detached"  # the daemon is gone; training goes on alone
    JOINING = "joining"  # the model is being agreed on, or pulled from other nodes
    READY = "ready"  # the run takes part in the training
    DRAINING = "draining"  # the daemon is stopping
    QUARANTINED = "quarantined"  # the model holds NaN or infinity, and is not exchanged
    RECOVERED = "recovered"  # the model is finite again
    NEIGHBOURS = "neighbours"  # replicas have come into reach, or gone
    WARNING = "warning"  # a GossamerWarning, with its text


@dataclass(frozen=True)
class Event:
    """Something that has happened to a run. `info` is the run's state at that moment."""

    kind: EventKind
    text: str
    info: RunInfo

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}"


_STATE_EVENTS = {
    "JOINING": (EventKind.JOINING, "the model is being agreed on with other nodes, or pulled from them"),
    "DRAINING": (EventKind.DRAINING, "gossamerd is stopping"),
    "QUARANTINED": (EventKind.QUARANTINED, "the model holds NaN or infinity, and is kept out of the averages"),
}


def events_between(before: RunInfo, now: RunInfo) -> Iterator[Event]:
    """The events between two looks, in the order in which they happen. Changes that came and went in between are not
    seen, except an attachment to another daemon."""
    if now.attachments > before.attachments:
        if before.attached:
            yield Event(EventKind.DETACHED, "the connection to gossamerd was lost", now)
        yield Event(EventKind.ATTACHED, f"to the gossamerd of node {now.node_id[:12]}", now)
    if before.attached and not now.attached:
        yield Event(EventKind.DETACHED, now.message or "the connection to gossamerd was lost", now)
    if now.state != before.state:
        if now.state.name == "RUNNING":
            if before.state.name == "QUARANTINED":
                yield Event(EventKind.RECOVERED, "the model holds numbers again", now)
            else:
                yield Event(EventKind.READY, f"at {now.global_clock} samples", now)
        elif now.state.name in _STATE_EVENTS:
            yield Event(*_STATE_EVENTS[now.state.name], now)
    if now.attached and now.neighbours != before.neighbours:
        yield Event(EventKind.NEIGHBOURS, f"{now.neighbours} replicas in reach, {before.neighbours} before", now)

"""The state that the coordination log amounts to: what a place, a claim, a member and an entry are.

`world_state.WorldState` makes them, by its rules.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

ADMIN_PREFIX: Final = "kcoord-admin-"
"""Client ids of an admin begin with it; its instance id follows, so that no member has the same one."""


class Rules(enum.StrEnum):
    """Who judges."""

    LIBRARY = "library"
    DOCUMENT = "document"


class Freshness(enum.StrEnum):
    """How old a claim's last heartbeat is: below one interval, up to two, more than two; or there is no claim."""

    FRESH = "fresh"
    UNKNOWN = "unknown"
    STALE = "stale"
    FREE = "free"


class Certainty(enum.StrEnum):
    """How much of a place's past a reader has seen whose log was trimmed; see "Laws" of `world_state`."""

    CERTAIN = "certain"  # all that counts
    SHOWN = "shown"  # the holder is known from its heartbeats of more than two intervals, or there is none after two
    INFERRED = "inferred"  # the holder is known from a heartbeat
    GUESSED = "guessed"  # a claim, which a reader of everything may have refused


class Outcome(enum.StrEnum):
    """What an entry has done to the state."""

    CLAIMED = "claimed"
    CLAIM_REFUSED = "claim refused"
    CLAIM_REPEATED = "claim repeated"
    RENEWED = "renewed"
    TAKEN_OVER = "taken over"  # a heartbeat that changed the holder
    HEARTBEAT_REFUSED = "heartbeat refused"
    RELEASED = "released"
    RELEASE_REFUSED = "release refused"
    PROPOSED = "proposed"  # ClaimingMessages of the holder
    PROPOSAL_REFUSED = "proposal refused"
    PAUSED = "paused"
    PRESENT = "present"
    HANDING_OVER = "handing over"
    SKIPPED = "skipped"  # no message, no effect under these rules, or the wrong coordination partition


class Place(NamedTuple):
    """What is claimed."""

    group_id: str
    topic: str
    partition: int


class Unreadable(str):
    """Why a value holds no message, in words.

    :ivar kind: ``empty``, ``length`` (too long), ``text`` (of no known type, another number of fields, no integer),
        ``range`` (an integer out of bounds) or ``utf8``
    """

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, kind: str, reason: str) -> Unreadable:
        self = super().__new__(cls, reason)
        self.kind = kind
        return self


class Entry(NamedTuple):
    """An entry of the log whose text was read.

    :ivar partition: of the coordination topic
    :ivar time_ms: of the record; see `log.RawEntry`
    :ivar message: one of the family ``marshal``, or `Unreadable`
    """

    partition: int
    offset: int
    time_ms: int
    is_append_time: bool
    message: Any


class Pause(NamedTuple):
    """A group is paused.

    :ivar until: s by the admin's clock (library), log time in ms (document)
    :ivar offset: of its ReleaseGroup
    """

    until: int
    offset: int


@dataclass(slots=True)
class Handoff:
    """The holder's word that it will release a partition for somebody.

    :ivar until_ms: log time after which it has no effect; at most two intervals after the release
    """

    to_instance_id: str
    until_ms: int


@dataclass(slots=True)
class Claim:
    """The state of one partition for one group.

    :ivar last_heartbeat: of the holder, s by its own clock; 0 for a released or never claimed partition
    :ivar last_release: s by the sender's clock; 0 for none
    :ivar current_offset: next offset to consume; the Go library takes 0 for unknown
    :ivar heartbeat_ms: log time of the last accepted claim or heartbeat; -1 for a released partition
    :ivar touched_ms: log time of the last entry about this place, a refused one included
    :ivar claimed_at: time of the message with which the holder's instance began to hold it, s by its own clock
    :ivar token: offset of the entry with which the holder's instance began to hold it: a fencing token; -1 if that was
        trimmed, or may have been
    :ivar certainty: less than certain only where the log was trimmed, and only by the document
    :ivar inferred_ms: log time of the first entry from which the holder was inferred; -1 if it was not
    :ivar former_instance_id: that the holder, another instance of its client, has replaced by a heartbeat
    :ivar proposed_offset: of the holder's last ClaimingMessages; -1 for none
    """

    place: Place
    instance_id: str = ""
    client_id: str = ""
    last_heartbeat: int = 0
    last_release: int = 0
    current_offset: int = 0
    heartbeat_ms: int = -1
    touched_ms: int = 0
    claimed_at: int = 0
    token: int = -1
    certainty: Certainty = Certainty.CERTAIN
    inferred_ms: int = -1
    former_instance_id: str | None = None
    proposed_offset: int = -1
    handoff: Handoff | None = None


@dataclass(slots=True)
class KnownMember:
    """An instance that was heard of, by any message of a group about a topic.

    :ivar seen_ms: log time of its last message
    :ivar max_claims: by its last Presence; None if it has sent none, or takes none
    """

    instance_id: str
    client_id: str
    seen_ms: int
    max_claims: int | None = None

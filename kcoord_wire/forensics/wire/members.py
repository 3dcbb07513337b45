"""The members of a group as rows: their lives, what they offer, and the client library behind them.

Law: a library is named only where no other client in use sends the same (facts: the versions that each library is
capped at, and sentences that it alone writes). A broker caps versions too, so a low version by itself says nothing;
a low one beside a high one of the same age does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kcoord_wire.forensics.model import MemberLife
from kcoord_wire.forensics.wire.rows import Rows
from kcoord_wire.forensics.wire.trace import Peer

__all__ = ["library_of", "member_rows"]

_JAVA_REASONS = (
    "need to re-join with the given member-id",
    "rebalance failed due to",
    "need to revoke partitions",
    "cached metadata has changed from",
    "group is already rebalancing",
    "the consumer is being closed",
    "the consumer unsubscribed from all topics",
)


def member_rows(group_id: str, peers: Sequence[Peer], rows: Rows, kinds: Mapping[int, str]) -> list[MemberLife]:
    """The lives, in order of their beginning.

    :param kinds: why a member left, by id() of the peer, where that is more than `Peer.why` says
    """
    versions = _versions(rows)
    seen: dict[str, int] = {}
    for row in rows.rows:
        for name in {row.member_id, row.who, *(leaver.member_id for leaver in row.leavers)} - {""}:
            seen[name] = max(seen.get(name, 0), row.key[0])
    return [_life(group_id, peer, rows, seen, versions, kinds.get(id(peer), peer.why)) for peer in peers]


def _life(
    group_id: str,
    peer: Peer,
    rows: Rows,
    seen: Mapping[str, int],
    versions: Mapping[str, Mapping[str, int]],
    why: str | None,
) -> MemberLife:
    last = peer.joins[-1] if peer.joins else None
    sign = rows.signs.last(peer.member_id)
    return MemberLife(
        group_id=group_id,
        member_id=peer.member_id,
        instance_id=peer.instance_id,
        client_id=peer.client_id,
        client_host=peer.host or None,
        joined_ns=peer.since[0],
        left_ns=None if peer.left is None else peer.left[0],
        why_left=why,
        last_seen_ns=max(seen.get(peer.member_id, 0), sign or 0, peer.since[0]),
        first_generation_id=peer.first_generation,
        last_generation_id=peer.last_generation,
        session_timeout_ms=peer.session_ms,
        rebalance_timeout_ms=peer.rebalance_ms,
        assignors=[] if last is None else last.assignors,
        topics=[] if last is None else list(last.subscribed),
        library=library_of(versions.get(peer.member_id, {}), [row.reason for row in peer.joins if row.reason]),
    )


def _versions(rows: Rows) -> dict[str, dict[str, int]]:
    """The highest version of each api that a member has sent."""
    found: dict[str, dict[str, int]] = {}
    for member_id, api, version in rows.signs.versions:
        found.setdefault(member_id, {})[api] = version
    for row in rows.rows:
        for name in {row.member_id, row.given_id, *(leaver.member_id for leaver in row.leavers)} - {""}:
            mine = found.setdefault(name, {})
            mine[row.api] = max(mine.get(row.api, 0), row.version)
    return found


def library_of(versions: Mapping[str, int], reasons: Iterable[str]) -> str | None:
    """The client library, if what a member sends is proof of one.

    :param versions: the highest of each api
    :param reasons: that it states in JoinGroup
    """
    if any(reason.startswith(_JAVA_REASONS) for reason in reasons):
        return "Java"
    join, sync, beat = versions.get("JoinGroup"), versions.get("SyncGroup"), versions.get("Heartbeat")
    leave, commit = versions.get("LeaveGroup"), versions.get("OffsetCommit")
    if commit == 10 and join == 9:
        return "franz-go"  # Java commits by topic id with the other protocol only
    if join == 7 and (leave == 5 or commit == 9):
        return "kafka-python"
    if join == 5 and sync == 3 and beat is not None and beat <= 1:
        return "aiokafka"
    if join == 5 and sync == 3 and beat == 3 and (commit in (8, 9) or leave == 1):
        return "librdkafka"
    if join == 5 and sync == 3 and beat == 3 and commit == 5:
        return "kafkajs"
    return None

"""Requests that no running member sends: an administrator's, one of a client that is long gone, one that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.kernel.virtual.scripts import Do

if TYPE_CHECKING:
    from kcoord_wire.worlds.group.members import MemberProcess
    from kcoord_wire.worlds.group.world import Cluster

_LONG: Final = "x" * 4_097  # a character more than a commit's text may have
_TOO_SHORT_MS: Final = 1


class _Kind(NamedTuple):
    """A kind of request.

    :ivar make: makes it of a member, with a generation that is so much ahead
    :ivar versions: the first and the last that it has
    :ivar wrongs: one of these must be wrong with it, since a right one would act for a running member
    """

    make: Callable[[Cluster, MemberProcess, int], Any]
    versions: tuple[int, int]
    wrongs: Sequence[str] = ()


_NO_MEMBER: Final = ("no group", "unknown group", "no member", "unknown member", "other instance")


def _identity(process: MemberProcess, ahead: int) -> dict[str, Any]:
    member = process.member
    return {
        "group_id": member.settings.group_id,
        "generation_id": member.generation_id + ahead,
        "member_id": member.member_id,
    }


def _join(_world: Cluster, process: MemberProcess, _ahead: int) -> m.JoinGroupRequest:
    options = process.options
    return m.JoinGroupRequest(
        group_id=options.group,
        session_timeout_ms=options.session_timeout_ms,
        member_id=process.member.member_id or "unknown",
        protocol_type="consumer",
        protocols=[m.JoinGroupRequestProtocol(name=str(name)) for name in options.assignors or ()],
    )


def _leave(_world: Cluster, process: MemberProcess, _ahead: int) -> m.LeaveGroupRequest:
    instance_id, member_id = process.options.instance_id, process.member.member_id
    removed = m.LeaveGroupRequestMemberIdentity(member_id=member_id)
    if instance_id is not None:
        removed = m.LeaveGroupRequestMemberIdentity(group_instance_id=instance_id)
    return m.LeaveGroupRequest(group_id=process.options.group, member_id=member_id, members=[removed])


def _simple_commit(world: Cluster, process: MemberProcess, _ahead: int) -> m.OffsetCommitRequest:
    offset = world.fresh_offset()
    partition = m.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=offset % 7, committed_metadata=f"at {offset}"
    )
    topic = m.OffsetCommitRequestTopic(name=min(world.topics), partitions=[partition])
    return m.OffsetCommitRequest(group_id=process.options.group, topics=[topic])


def _commit(world: Cluster, process: MemberProcess, ahead: int) -> m.OffsetCommitRequest:
    request = _simple_commit(world, process, ahead)
    request.generation_id_or_member_epoch = process.member.generation_id + ahead
    request.member_id = process.member.member_id
    return request


def _brief_commit(world: Cluster, process: MemberProcess, ahead: int) -> m.OffsetCommitRequest:
    """Also of a client that wants the offset to expire."""
    request = _simple_commit(world, process, ahead)
    request.retention_time_ms = 5_000
    for topic in request.topics:
        for partition in topic.partitions:
            partition.committed_leader_epoch = -1  # which old versions do not have
    return request


def _fetch(world: Cluster, process: MemberProcess, ahead: int) -> m.OffsetFetchRequest:
    """All offsets, or those of a partition that is there and one that is not."""
    group_id, name, numbers = process.options.group, min(world.topics), [0, 99]
    return m.OffsetFetchRequest(
        group_id=group_id,
        topics=None if ahead else [m.OffsetFetchRequestTopic(name=name, partition_indexes=numbers)],
        groups=[
            m.OffsetFetchRequestGroup(
                group_id=group_id,
                topics=None if ahead else [m.OffsetFetchRequestTopics(name=name, partition_indexes=numbers)],
            )
        ],
    )


def _delete_offsets(world: Cluster, process: MemberProcess, _ahead: int) -> m.OffsetDeleteRequest:
    partitions = [m.OffsetDeleteRequestPartition(partition_index=0)]
    topic = m.OffsetDeleteRequestTopic(name=min(world.topics), partitions=partitions)
    return m.OffsetDeleteRequest(group_id=process.options.group, topics=[topic])


def _list(_world: Cluster, _process: MemberProcess, ahead: int) -> m.ListGroupsRequest:
    message = m.ListGroupsRequest()
    if ahead > 0:
        message.states_filter = ["stable"]
    elif ahead < 0:
        message.types_filter = ["Classic"]
    return message


STALE_REQUESTS: Final[Mapping[str, _Kind]] = {
    "heartbeat": _Kind(lambda _, process, ahead: m.HeartbeatRequest(**_identity(process, ahead)), (0, 4)),
    "sync": _Kind(lambda _, process, ahead: m.SyncGroupRequest(**_identity(process, ahead)), (0, 5), _NO_MEMBER),
    "join": _Kind(_join, (5, 9), (*_NO_MEMBER, "other protocol", "short session")),
    "leave": _Kind(_leave, (0, 5)),
    "commit": _Kind(_commit, (2, 9)),
    "simple commit": _Kind(_simple_commit, (2, 9)),
    "brief commit": _Kind(_brief_commit, (2, 4)),
    "fetch": _Kind(_fetch, (1, 9)),
    "delete group": _Kind(
        lambda _, process, __: m.DeleteGroupsRequest(groups_names=[process.options.group, "unknown"]), (0, 2)
    ),
    "delete offsets": _Kind(_delete_offsets, (0, 0)),
    "describe": _Kind(
        lambda _, process, __: m.DescribeGroupsRequest(groups=[process.options.group, "unknown"]), (0, 6)
    ),
    "list": _Kind(_list, (0, 5)),
}

HARMLESS: Final = (
    "heartbeat",
    "leave",
    "commit",
    "simple commit",
    "fetch",
    "delete group",
    "delete offsets",
    "describe",
    "list",
)
"""Kinds that may be right."""

# ---- what is wrong with one


def _with(**values: Any) -> Callable[[Any], None]:
    """Return what sets those fields that a request has."""

    def change(part: Any) -> None:
        for name, value in values.items():
            if hasattr(part, name):
                setattr(part, name, value)

    return change


_OF_WHO: Final[Mapping[str, Callable[[Any], None]]] = {
    "no group": _with(group_id=""),
    "unknown group": _with(group_id="unknown"),
    "no member": _with(member_id=""),
    "unknown member": _with(member_id="unknown"),
    "unknown instance": _with(group_instance_id="unknown"),
    "other instance": _with(group_instance_id="i1", member_id="unknown"),
    "other protocol": _with(protocol_type="other", protocol_name="other", protocols=[]),
    "short session": _with(session_timeout_ms=_TOO_SHORT_MS),
}
_OF_WHAT: Final[Mapping[str, Callable[[Any], None]]] = {
    "": _with(),
    "unknown topic": _with(name="unknown"),
    "unknown partition": _with(partition_index=99),
    "negative partition": _with(partition_index=-1),
    "long text": _with(committed_metadata=_LONG),
}
WRONG: Final[Mapping[str, Callable[[Any], None]]] = {**_OF_WHAT, **_OF_WHO}


def make_stale(
    world: Cluster, kind: str, process: MemberProcess, ahead: int, wrong: str, version: int | None
) -> tuple[Any, int]:
    """Return a request and its version; see `Cluster.send_stale`.

    :raises KeyError: no such kind, or nothing that is wrong has this name
    """
    made, change = STALE_REQUESTS[kind], WRONG[wrong]
    message = made.make(world, process, ahead)
    version = made.versions[1] if version is None else version
    for part in (message, *_parts(message)):
        change(part)
    return message, version


def _parts(message: Any) -> list[Any]:
    topics = getattr(message, "topics", None) or []
    partitions = [item for topic in topics for item in getattr(topic, "partitions", ())]
    groups = message.groups if isinstance(message, m.OffsetFetchRequest) else []
    return [*topics, *partitions, *groups, *getattr(message, "members", ())]


def draw_strays(seed: int, names: Sequence[str], until: int) -> list[Do]:
    """Draw the stale requests of a run. They have a source of their own, so that the other actions of a seed are the
    same without them.

    :param names: of the members
    :param until: the time of the last action, in ms
    """
    random = Random(f"{seed}/strays")
    return [_drawn(random, random.randint(0, until), random.choice(names)) for _ in range(random.choice([0, 15, 40]))]


def _drawn(random: Random, at: int, name: str) -> Do:
    kind = random.choice(list(STALE_REQUESTS))
    made = STALE_REQUESTS[kind]
    wrongs = made.wrongs or list(_OF_WHO if random.random() < 0.5 else _OF_WHAT)
    return Do(
        at, "send_stale", kind, name, random.choice([-1, 0, 1]), random.choice(wrongs), random.randint(*made.versions)
    )

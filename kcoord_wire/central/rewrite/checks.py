"""Which names and numbers a request may have.

Laws:

* A request that passes has nothing that cannot be a node of ZooKeeper, a partition, an offset or a session timeout.
* It names no more than `MOST_NAMES`, whatever fits into its frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.answers import Request, group_of
from kcoord_wire.central.rewrite.events import CoordinatorSettings, RewriteError
from kcoord_wire.central.rewrite.layout import STRATEGIES, is_legal_name

MOST_NAMES: Final = 10_000
"""Topics and partitions of one request: each costs a request to ZooKeeper."""


def fault_of(request: Request, settings: CoordinatorSettings) -> tuple[RewriteError, str] | None:
    """Return the error and the reason for which a request is refused; None for a correct one."""
    if isinstance(request, m.MetadataRequest):
        topics = len(request.topics or ())
        return (RewriteError.INVALID_REQUEST, f"{topics} topics") if topics > MOST_NAMES else None
    if not is_legal_name(group_of(request)):
        return RewriteError.INVALID_REQUEST, "a group id that is not allowed"
    if isinstance(request, m.rewrite.RewriteJoinGroupRequest):
        return _names(request.topics) or _join(request, settings)
    if isinstance(request, m.OffsetCommitRequest | m.OffsetFetchRequest):
        return _names(topic.name for topic in request.topics or ()) or _numbers(_numbers_of(request))
    return None


def _numbers_of(request: m.OffsetCommitRequest | m.OffsetFetchRequest) -> Iterator[int]:
    if isinstance(request, m.OffsetFetchRequest):
        for wanted in request.topics or ():
            yield from wanted.partition_indexes
    else:
        for topic in request.topics:
            for partition in topic.partitions:
                yield partition.partition_index
                yield partition.committed_offset


def _join(request: m.rewrite.RewriteJoinGroupRequest, settings: CoordinatorSettings) -> tuple[RewriteError, str] | None:
    if request.strategy not in STRATEGIES:
        return RewriteError.UNKNOWN_STRATEGY, f"strategy {request.strategy[:100]!r}"
    if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
        return RewriteError.INVALID_SESSION_TIMEOUT, f"session timeout {request.session_timeout_ms} ms"
    return None


def _names(topics: Iterable[str]) -> tuple[RewriteError, str] | None:
    for number, topic in enumerate(topics):
        if not is_legal_name(topic):
            return RewriteError.INVALID_REQUEST, f"topic {topic[:100]!r}"
        if number == MOST_NAMES:
            return RewriteError.INVALID_REQUEST, f"more than {MOST_NAMES} topics"
    return None


def _numbers(numbers: Iterable[int]) -> tuple[RewriteError, str] | None:
    for count, number in enumerate(numbers):
        if number < 0:
            return RewriteError.INVALID_REQUEST, "a partition or an offset below 0"
        if count == 2 * MOST_NAMES:  # a commit has two for each partition
            return RewriteError.INVALID_REQUEST, f"more than {MOST_NAMES} partitions"
    return None

"""Bugs of consumer clients that make groups rebalance, stop, or read partitions twice: one row each.

Laws:

* The versions are those of the project's own changelog, or of the release tags that hold the fix and, for `since`, the
  code that it fixes; what they do not show is None or empty.
* A bug without a fixed version is open, and no version is known to be free of it: findings do not name it.
* A version that cannot be placed (another project's numbers, an unknown suffix) counts as not affected: a finding that
  names a bug wrongly costs more than one that names none.

The simulation plays the rows (`worlds.group.client_bugs`), forensics names them
(`forensics.detectors.finding.known_bugs`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_JIRA: Final = "https://issues.apache.org/jira/browse/"
_GITHUB: Final = "https://github.com/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientBug:
    """A bug of a client library.

    :ivar name: as its project calls it, ``KAFKA-14639`` or ``librdkafka#4783``
    :ivar software: as the client states it in ApiVersions (KIP-511); empty if it states none
    :ivar shape: what it does to a group, in a sentence
    :ivar since: the first affected version; None if the project does not say
    :ivar fixed: the first fixed version of each line of releases that was fixed, ascending; empty while it is open
    :ivar reference: where the project says so
    :ivar detectors: the detectors whose findings it may be behind
    :ivar assignors: the assignors that it is in; empty for any
    :ivar requires: what such a finding must show besides: ``older claim`` (a claim of an older generation was ignored),
        ``older claim preferred``, ``racks``, ``unequal subscriptions``, ``silent leader``
    """

    name: str
    software: str
    shape: str
    since: str | None
    fixed: Sequence[str]
    reference: str
    detectors: Sequence[str]
    assignors: Sequence[str] = ()
    requires: Sequence[str] = ()


_COOPERATIVE: Final = ("cooperative-sticky",)
_STICKY: Final = ("sticky", "cooperative-sticky")
_JAVA: Final = "apache-kafka-java"

CLIENT_BUGS: Final[Mapping[str, ClientBug]] = MappingProxyType(
    {
        bug.name: bug
        for bug in (
            ClientBug(
                name="KAFKA-12983",
                software=_JAVA,
                shape="A member that loses its member id while it rejoins keeps its owned partitions, and claims them "
                "against their new owners.",
                since="2.4.0",
                fixed=("2.7.2", "2.8.1", "3.0.0"),
                reference=f"{_JIRA}KAFKA-12983",
                detectors=("stale_claim",),
                assignors=_COOPERATIVE,
            ),
            ClientBug(
                name="KAFKA-12984",
                software=_JAVA,
                shape="The leader gives a partition that two members claim to both of them.",
                since="2.5.1",
                fixed=("3.0.0",),
                reference=f"{_JIRA}KAFKA-12984",
                detectors=("two_owners",),
                assignors=_COOPERATIVE,
            ),
            ClientBug(
                name="KAFKA-13406",
                software=_JAVA,
                shape="The leader refuses the assignment of its own assignor because a member's claim is out of date, "
                "rejoins, and refuses the next one: nothing is ever assigned.",
                since="2.4.0",
                fixed=("2.8.2", "3.0.1", "3.1.0"),
                reference=f"{_JIRA}KAFKA-13406",
                detectors=("leader_does_not_assign",),
                assignors=_COOPERATIVE,
            ),
            ClientBug(
                name="KAFKA-14024",
                software=_JAVA,
                shape="A cooperative member commits before it rejoins, without end, and is removed at the rebalance "
                "timeout.",
                since="3.2.0",
                fixed=("3.2.1", "3.3.0"),
                reference=f"{_JIRA}KAFKA-14024",
                detectors=("commits_instead_of_joining",),
            ),
            ClientBug(
                name="KAFKA-14639",
                software=_JAVA,
                shape="A member that was late for SyncGroup (KAFKA-13419, KAFKA-13891) rejoins with partitions of an "
                "older generation; the leader gives them to others in the same round, before it has given them up.",
                since="3.0.0",
                fixed=("3.4.1", "3.5.0"),
                reference=f"{_JIRA}KAFKA-14639",
                detectors=("handed_over_early",),
                assignors=_COOPERATIVE,
                requires=("older claim",),
            ),
            ClientBug(
                name="KAFKA-15106",
                software=_JAVA,
                shape="With unequal subscriptions the sticky assignor does not see that an assignment is balanced, and "
                "moves partitions in every round.",
                since="3.5.0",
                fixed=("3.5.2", "3.6.0"),
                reference=f"{_JIRA}KAFKA-15106",
                detectors=("cooperative_loop",),
                assignors=_STICKY,
                requires=("unequal subscriptions",),
            ),
            ClientBug(
                name="KAFKA-15170",
                software=_JAVA,
                shape="With racks, a partition that its owner is not to keep is missing among those to be transferred, "
                "and is given to another member before the owner has given it up.",
                since="3.5.0",
                fixed=("3.7.1", "3.8.0"),
                reference=f"{_JIRA}KAFKA-15170",
                detectors=("handed_over_early",),
                assignors=_COOPERATIVE,
                requires=("racks",),
            ),
            ClientBug(
                name="KAFKA-16277",
                software=_JAVA,
                shape="Partition counts are even, but whole topics are on single members.",
                since="2.5.1",
                fixed=("3.7.1", "3.8.0"),
                reference=f"{_JIRA}KAFKA-16277",
                detectors=("clumped_topic",),
                assignors=_STICKY,
            ),
            ClientBug(
                name="librdkafka#3306",
                software="librdkafka",
                shape="cooperative-sticky moves partitions that balance does not require, round after round.",
                since="1.6.0",
                fixed=("1.7.0",),
                reference=f"{_GITHUB}confluentinc/librdkafka/blob/master/CHANGELOG.md",
                detectors=("cooperative_loop",),
                assignors=_COOPERATIVE,
            ),
            ClientBug(
                name="librdkafka#3866",
                software="librdkafka",
                shape="The group goes from JoinGroup to a SyncGroup with an error and back, for hours (seen "
                "with 1.5.3, cause not known).",
                since=None,
                fixed=(),
                reference=f"{_GITHUB}confluentinc/librdkafka/issues/3866",
                detectors=("leader_does_not_assign",),
            ),
            ClientBug(
                name="librdkafka#3891",
                software="librdkafka",
                shape="After one member has left, the partitions of another are revoked and assigned 7 to 8 times.",
                since=None,
                fixed=(),
                reference=f"{_GITHUB}confluentinc/librdkafka/issues/3891",
                detectors=("cooperative_loop",),
                assignors=_COOPERATIVE,
            ),
            ClientBug(
                name="librdkafka#4252",
                software="librdkafka",
                shape="Of two members that claim a partition, the leader takes the one of the older generation for the "
                "owner, and the partition is taken from the other while it works on it.",
                since="1.6.0",
                fixed=("2.2.0",),
                reference=f"{_GITHUB}confluentinc/librdkafka/pull/4252",
                detectors=("handed_over_early",),
                assignors=_COOPERATIVE,
                requires=("older claim preferred",),
            ),
            ClientBug(
                name="librdkafka#4783",
                software="librdkafka",
                shape="The leader's assignor does not end: no SyncGroup and no heartbeat comes from the leader, and "
                "the group waits in CompletingRebalance.",
                since="1.6.0",
                fixed=("2.6.1",),
                reference=f"{_GITHUB}confluentinc/librdkafka/issues/4783",
                detectors=("stuck_completing",),
                assignors=_COOPERATIVE,
                requires=("silent leader",),
            ),
            ClientBug(
                name="franz-go#686",
                software="kgo",
                shape="When a group turns from eager to cooperative, a member takes partitions that it has just "
                "revoked for its own, and reads none of them.",
                since="1.13.1",
                fixed=("1.17.0",),
                reference=f"{_GITHUB}twmb/franz-go/issues/686",
                detectors=("assigned_not_read",),
                assignors=_COOPERATIVE,
            ),
            ClientBug(
                name="aiokafka#1176",
                software="",
                shape="Members of the sticky assignor claim their partitions with generation -1, so that the leader "
                "cannot see which of two claims is out of date.",
                since=None,
                fixed=(),
                reference=f"{_GITHUB}aio-libs/aiokafka/issues/1176",
                detectors=("stuck_completing",),
                assignors=("sticky",),
            ),
        )
    }
)
"""The bugs, by name."""

_NUMBERS: Final = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){1,3})([.-].*)?")
_BOUND: Final = re.compile(r".*(?:^|-)(?:lib)?rdkafka-(\d.*)")
_FIRST_CONFLUENT_PLATFORM: Final = 5  # its Java clients are 5.4.0-ccs and later, on Kafka 2.4 and later


def is_affected(bug: ClientBug, software: str | None) -> bool:
    """Whether a version is known to have a bug.

    :param software: name and version as in `Exchange.software`; bindings of librdkafka state its version at the end,
        ``confluent-kafka-python 2.16.1-rdkafka-2.16.0``
    """
    name, _, version = (software or "").partition(" ")
    bound = _BOUND.fullmatch(version)
    if bound is not None:
        name, version = "librdkafka", bound[1]
    placed = _parse(version)
    if not bug.fixed or bug.since is None or name != bug.software or placed is None or placed < _of(bug.since):
        return False
    return not any(placed >= _of(fixed) for fixed in bug.fixed if fixed == bug.fixed[-1] or _is_line(placed, fixed))


def _parse(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a version; None if they are not the project's own.

    A release candidate counts as its release: it may have the fix already.
    """
    found = _NUMBERS.fullmatch(version)
    if found is None:
        return None
    numbers = tuple(map(int, found[1].split(".")))
    is_platform = (found[2] or "").startswith(("-ccs", "-ce")) and numbers[0] >= _FIRST_CONFLUENT_PLATFORM
    return None if is_platform else numbers


def _of(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _is_line(placed: tuple[int, ...], fixed: str) -> bool:
    """Whether a version is of the same line of releases, 2.8 for 2.8.1, as a fixed one."""
    return placed[:2] == _of(fixed)[:2]

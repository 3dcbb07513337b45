"""What lines mean: every kind has a meaning, the commonest lines the right one."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.detectors import logged
from kcoord_wire.forensics.lines import broker, clients
from kcoord_wire.forensics.lines.meanings import MEANINGS, explain_line
from kcoord_wire.forensics.lines.shapes import BROKER_SHAPES, CLIENT_SHAPES

M = "app-b542b773-d427-4892-9760-92cf58a9215a"
PREPARING = (
    "Preparing to rebalance group g in state PreparingRebalance with old generation 3 (__consumer_offsets-1) (reason: "
)


def test_every_kind_has_a_meaning_and_no_other() -> None:
    assert {shape.kind for shape in (*BROKER_SHAPES, *CLIENT_SHAPES)} == set(MEANINGS)
    assert {meaning.is_error for meaning in MEANINGS.values()} == {"no", "yes", "if it repeats"}


def test_analyze_uses_each_line_that_is_explained() -> None:
    """Each kind makes the history of a group, or is reported; an error that no history has is always reported."""
    in_history = broker.READ | clients.READ
    reported = {kind for kind, meaning in MEANINGS.items() if meaning.reported is not None}
    assert in_history | logged.READ | reported == set(MEANINGS)
    assert {kind for kind, meaning in MEANINGS.items() if meaning.is_error == "yes"} <= in_history | reported
    assert not logged.READ & reported


def test_a_poll_timeout_has_the_whole_time() -> None:
    line = "%4|1.0|MAXPOLL|c#consumer-1| [thrd:main]: Application maximum poll interval (300000ms) exceeded by 88ms"
    explained = explain_line(line)
    assert explained is not None
    assert explained.stated["took_ms"] == 300_088
    assert explained.meaning.says.endswith("The last poll was 300.1 s before.")


@pytest.mark.parametrize(
    ("line", "kind", "is_error", "word"),
    [
        (
            "Attempt to heartbeat failed since group is rebalancing",
            "heartbeat_rebalancing",
            "no",
            "REBALANCE_IN_PROGRESS",
        ),
        ("The group is rebalancing, so a rejoin is needed", "heartbeat_rebalancing", "no", "others set off"),
        ("The coordinator is not aware of this member", "unknown_member", "yes", "UNKNOWN_MEMBER_ID"),
        (
            "Offset commit failed on partition orders-0 at offset 5: The coordinator is not aware of this member.",
            "commit_failed",
            "yes",
            "not committed",
        ),
        (
            "org.apache.kafka.clients.consumer.CommitFailedException: Commit cannot "
            "be completed since the group has already "
            "rebalanced and assigned the partitions to another member.",
            "commit_refused",
            "yes",
            "refused",
        ),
        (
            "org.apache.kafka.common.errors.RebalanceInProgressException: Offset commit cannot be completed since the "
            "consumer is undergoing a rebalance for auto partition assignment.",
            "commit_rebalancing",
            "if it repeats",
            "middle of a rebalance",
        ),
        (
            "%4|1795348803.123|MAXPOLL|c#consumer-1| [thrd:main]: Application maximum "
            "poll interval (300000ms) exceeded by "
            "88ms (adjust max.poll.interval.ms for long-running message processing): leaving group",
            "poll_timeout",
            "yes",
            "max.poll.interval.ms",
        ),
        (
            "%4|1795348803.123|SESSTMOUT|c#consumer-1| [thrd:main]: Consumer group "
            "session timed out (in join-state steady) "
            "after 6001 ms without a successful response from the group coordinator",
            "session_lost",
            "yes",
            "heartbeats",
        ),
        ("Error: FENCED_INSTANCE_ID", "fenced", "yes", "group.instance.id"),
        ("GroupAuthorizationException: Not authorized to access group: g", "unauthorized", "yes", "may not read"),
        (f"{PREPARING}removing member {M} on heartbeat expiration)", "preparing", "yes", "session timeout"),
        (f"{PREPARING}Adding new member {M} with group instance id None)", "preparing", "no", "new member"),
        (
            f"{PREPARING}Removing member {M} on LeaveGroup; client reason: consumer poll timeout has expired.)",
            "preparing",
            "yes",
            "max.poll.interval.ms exceeded",
        ),
        (f"{PREPARING}a reason of a later release)", "preparing", "no", "begins a rebalance"),
    ],
)
def test_common_lines_are_explained(line: str, kind: str, is_error: str, word: str) -> None:
    explained = explain_line(line)
    assert explained is not None
    assert (explained.kind, explained.meaning.is_error) == (kind, is_error)
    assert word in explained.meaning.says


def test_other_lines_are_not_explained() -> None:
    assert explain_line("Rolled new log segment") is None

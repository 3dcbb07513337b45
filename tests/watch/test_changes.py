"""Changes as lines and as JSON."""

from __future__ import annotations

import json

from kcoord_wire.forensics.model import Identity
from kcoord_wire.watch.group import Change, ChangeKind, lines_of
from tests.support.watching import SECOND, START

GONE = Change(START + 3 * SECOND, "billing", ChangeKind.MEMBER_GONE, "member c-2 (10.0.0.2) gone", Identity("c-2-a"))
ENDED = Change(
    START + 3 * SECOND, "billing", ChangeKind.REBALANCE_ENDED, "3 partitions moved", None, 4, "member left", 0.5
)


def test_one_line_for_each_group_and_poll() -> None:
    other = Change(START + 3 * SECOND, "a\x1b[31mudit", ChangeKind.GROUP_SEEN, "Empty, 0 members")
    lines = list(lines_of([GONE, ENDED, other]))
    assert lines[0] == "12:00:03 billing: member c-2 (10.0.0.2) gone; 3 partitions moved"
    assert lines[1] == "12:00:03 a\\x1b[31mudit: Empty, 0 members"
    assert list(lines_of([Change(START, None, ChangeKind.ANSWERED, "k1 answers again")])) == [
        "12:00:00 k1 answers again"
    ]


def test_json_has_what_is_known() -> None:
    first, second = (json.loads(json.dumps(change.to_json())) for change in (GONE, ENDED))
    assert (first["kind"], first["member_id"], first["client_id"]) == ("member gone", "c-2-a", None)
    assert (second["rebalance"], second["cause"], second["confidence"]) == (4, "member left", 0.5)
    assert first["time"] == "2026-11-21T12:00:03.000000000Z"

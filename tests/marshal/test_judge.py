"""The judge of real consumers finds what it has to find, in outputs that were made up."""

from __future__ import annotations

from tests.support.marshal_judge import ClaimRules, Processed

INTERVAL_MS = 1_000


def rows(client: str, token: int, offsets: range, at_ms: int) -> list[Processed]:
    """Records of partition 0, one every 100 ms."""
    return [Processed(client, token, 0, offset, at_ms + 100 * index) for index, offset in enumerate(offsets)]


def unlawful(output: list[Processed], end: int, *, at_most_once: bool = False) -> list[str]:
    return ClaimRules(output, [end]).unlawful(INTERVAL_MS, at_most_once=at_most_once)


def test_repeats_of_one_interval_are_lawful_at_least_once() -> None:
    output = rows("a", 1, range(20), 0) + rows("b", 9, range(9, 30), 5_000)
    assert unlawful(output, 30) == []
    [takeover] = ClaimRules(output, [30]).takeovers
    assert (takeover.before.client, takeover.after.client) == ("a", "b")
    assert (takeover.gap_ms, takeover.repeated, takeover.span_ms) == (3_100, 11, 900)


def test_repeats_of_more_than_an_interval_are_found() -> None:
    [found] = unlawful(rows("a", 1, range(20), 0) + rows("b", 9, range(7, 30), 5_000), 30)
    assert found == (
        "partition 0: b repeats 13 records of a, or of one before, handed out over 1100 ms,"
        " more than one heartbeat interval"
    )


def test_a_tenure_without_a_heartbeat_is_repeated_whole() -> None:
    first, second = rows("a", 1, range(20), 0), rows("b", 9, range(12, 16), 5_000)
    output = first + second + rows("c", 20, range(12, 30), 10_000)
    assert unlawful(output, 30) == []
    assert [(each.repeated, each.span_ms) for each in ClaimRules(output, [30]).takeovers] == [(4, 200), (4, 600)]
    late = first + second + rows("c", 20, range(7, 30), 10_000)
    assert len(unlawful(late, 30)) == 1, "c repeats more of a than one interval"


def test_a_lost_record_is_found() -> None:
    output = rows("a", 1, range(20), 0) + rows("b", 9, range(21, 30), 5_000)
    assert unlawful(output, 30) == ["partition 0: offset 20 was never processed"]
    assert unlawful(output, 30, at_most_once=True) == []
    assert ClaimRules(output, [30]).missing == [(0, 20)]


def test_a_repeat_is_found_at_most_once() -> None:
    output = rows("a", 1, range(20), 0) + rows("b", 9, range(19, 30), 5_000)
    assert unlawful(output, 30, at_most_once=True) == ["partition 0: offset 19 was processed 2 times"]


def test_tenures_that_overlap_are_found() -> None:
    output = rows("a", 1, range(20), 0) + rows("b", 9, range(20, 30), 1_800)
    for at_most_once in (False, True):
        [found] = unlawful(output, 30, at_most_once=at_most_once)
        assert found == ("partition 0: a (token 1) was handed offset 19 100 ms after b (token 9) was handed offset 20")

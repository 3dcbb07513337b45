"""The detector flapping_member on a group with the problem, and on groups that only look like it."""

from __future__ import annotations

from tests.support.detector_groups import group, life, of


def test_flapping_is_one_member_id_after_the_other() -> None:
    flaps = [life("c1", n * 30, n * 30 + 20, member_id=f"c1-{n}", why_left="session timeout") for n in range(5)]
    (found,) = of("flapping_member", group(members=[*flaps, life("c2")]))
    assert (found.subject, found.value) == ("c1 at 10.0.0.1", 4)
    assert "session timeout" in found.text
    together = [life("rdkafka", n, 3000, member_id=f"rdkafka-{n}") for n in range(10)]
    assert of("flapping_member", group(members=together)) == []
    bounced = [life("rdkafka", 3100 + n, member_id=f"new-{n}") for n in range(10)]
    assert of("flapping_member", group(members=[*together, *bounced])) == []  # each of the ten came back once
    hourly = [life("c1", n * 3600, n * 3600 + 20, member_id=f"c1-{n}") for n in range(9)]
    assert of("flapping_member", group(36_000, members=hourly)) == []

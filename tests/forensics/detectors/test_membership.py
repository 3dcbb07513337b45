"""Two applications in one group: members without a common topic, side by side.

The detector flapping_member on a group with the problem, and on groups that only look like it.

Frozen members: a silence that the same member ends, while others are heard.

Slow polls: who did not poll in time, and how long the poll took.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors.finding import stem
from kcoord_wire.forensics.model import Awaited, Exchange, GroupHistory, MemberLife
from tests.support.detector_groups import SECOND, exchange, generation, group, life, of, rebalance


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("web-7d4f", "web"), ("web-2", "web"), ("web2", "web"), ("web", "web"), (None, ""), ("a.b", "a")],
)
def test_stem_of_a_client_id(name: str | None, wanted: str) -> None:
    assert stem(name) == wanted


def test_two_applications_are_named_with_their_topics() -> None:
    lives = [life("billing-1"), life("billing-2", 5), life("audit-1", 10, 14, topics=["bills"])]
    (found,) = of("two_applications", group(60, members=lives))
    assert found.severity == "warning"
    assert found.text == (
        "two applications share the group id: billing-1, billing-2 subscribe to orders, audit-1 to bills, no topic in "
        "common, side by side for 4.0 s"
    )


def test_consumers_of_one_application_are_told_after_a_minute() -> None:
    lives = [life("app-1"), life("app-2", topics=["bills"])]
    (found,) = of("two_applications", group(70, members=lives))
    assert found.severity == "info"
    assert of("two_applications", group(50, members=lives)) == []


def test_a_chain_of_common_topics_is_one_application() -> None:
    lives = [life("a", topics=["x"]), life("b", topics=["y"]), life("c", topics=["x", "y"])]
    assert of("two_applications", group(3600, members=lives)) == []


def test_one_after_the_other_is_normal() -> None:
    lives = [life("a", 0, 20, topics=["x"]), life("b", 20, topics=["y"])]
    assert of("two_applications", group(3600, members=lives)) == []


def test_a_member_that_changes_its_subscription_counts_later() -> None:
    lives = [life("a", topics=["x"]), life("b", topics=["y"])]
    changed = rebalance(2, 10, Cause.SUBSCRIPTION_CHANGED, client="b")
    assert of("two_applications", group(20, members=lives, rebalances=[changed])) == []
    (found,) = of("two_applications", group(22, members=lives, rebalances=[changed]))
    assert found.value == 2


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


def crashes(starts: int, end: str | None = "process died") -> list[dict[str, object]]:
    """Starts of a process every 8 s, each of which dies after 5 s; its session of 45 s goes on."""
    return [
        {"from_s": n * 8, "to_s": n * 8 + 50, "member_id": f"w-{n}", "why_left": "session timeout",
         "died_ns": (n * 8 + 5) * SECOND, "end": end}
        for n in range(starts)
    ]  # fmt: skip


def test_a_crash_loop_is_found_before_a_session_is_over() -> None:
    lives = [life("w", **values) for values in crashes(4)]  # type: ignore[arg-type]  # mixed values by name
    wait = Awaited("w-0", "w", "10.0.0.1", 10 * SECOND, 40_000, "process died", 5 * SECOND)
    history = group(30, members=[*lives, life("c2")], rebalances=[rebalance(1, 8, waited_for=[wait])])
    (found,) = of("flapping_member", history)
    assert found.value == 3
    assert "came back 3 times within 24 s, a crash loop; it was lost by process died (3 x)" in found.text
    assert "a rebalance waited for a dead incarnation of it, 40.0 s in all" in found.text
    assert "OOM" in found.advice
    assert "max.poll" not in found.advice
    unknown = [life("w", **{**values, "died_ns": None, "end": None}) for values in crashes(4)]  # type: ignore[arg-type]
    (found,) = of("flapping_member", group(30, members=unknown))
    assert "it was lost by a restart of its process (3 x)" in found.text


def test_consumers_of_one_process_were_there_together() -> None:
    """Their client id is the same, they joined one after another, and their sessions are over together."""
    for session_ms in (None, 6_000):
        lives = [
            life("w", n, 30, member_id=f"w-{n}", why_left="session timeout", session_timeout_ms=session_ms)
            for n in range(0, 20, 4)
        ]
        assert of("flapping_member", group(60, members=lives)) == []


@pytest.mark.parametrize(
    ("end", "why", "word"),
    [
        ("process died", "session timeout", "exit code"),
        ("silent", "session timeout", "garbage collections"),
        ("left", "left", "in order"),
        ("left", "poll timeout", "max.poll.records"),
        (None, "rebalance timeout", "max.poll.records"),
        ("gone", "session timeout", "session.timeout.ms"),
    ],
)
def test_the_advice_fits_how_the_lives_ended(end: str | None, why: str, word: str) -> None:
    lives = [life("w", n * 60, n * 60 + 50, member_id=f"w-{n}", end=end, why_left=why) for n in range(5)]
    (found,) = of("flapping_member", group(members=lives))
    assert word in found.advice
    assert "shorten" not in found.advice


def test_processes_that_take_an_instance_id_in_turns_do_not_flap() -> None:
    """On the wire their ends would be seen; from a log alone each may be the same one, started again."""
    lives = [
        life("c1", 10 * at, 10 * at + 10, member_id=str(at), instance_id="i-1", why_left="replaced") for at in range(9)
    ]
    assert of("flapping_member", group(members=lives))
    assert of("flapping_member", group(members=lives), beats("c1", range(90))) == []


def beats(client: str, seconds: Iterable[float]) -> list[Exchange]:
    return [exchange("Heartbeat", at, client_id=client, member_id=f"{client}-id") for at in seconds]


WITH_A_GAP = [*range(0, 30, 3), *range(50, 90, 3)]


def test_a_member_that_goes_on_after_a_silence() -> None:
    history = group(90, members=[life("c1"), life("c2")])
    (found,) = of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", range(0, 90, 3)))
    assert (found.severity, found.subject) == ("warning", "c1"), "23 s of a session of 45 s"
    assert found.text == (
        "c1 (10.0.0.1) was silent for 23.0 s, with a heartbeat every 3.0 s before, and then went on as the same "
        "process: it was frozen, or its network carried nothing"
    )
    shorter = beats("c1", [*range(0, 30, 3), *range(40, 90, 3)]) + beats("c2", range(0, 90, 3))
    (found,) = of("frozen_member", history, shorter)
    assert found.severity == "info"


@pytest.mark.parametrize(
    ("after", "late", "silent"),
    [("b", "a", 0), ("b", None, 1), ("b", "b", 1), ("a", "a", 1), ("a", "b", 1)],
    ids=["held up", "another connection", "no longer the former", "the same one", "another one later"],
)
def test_a_connection_held_up_is_no_silence(after: str, late: str | None, silent: int) -> None:
    names = {name: f"10.0.0.1:400{at}-10.0.0.9:9092#{at}" for at, name in enumerate("ab")}
    rows = beats("c1", WITH_A_GAP)
    for row in rows:
        row.connection = names["a" if (row.asked_ns or 0) < 30 * SECOND else after]
    others = beats("c2", range(0, 90, 3))
    for row in others:
        row.connection = "10.0.0.2:4000-10.0.0.9:9092#9"
    if late:
        rows += beats("c1", [54])
        rows[-1].connection = names[late]
    history = group(90, members=[life("c1"), life("c2")])
    assert len(list(of("frozen_member", history, [*rows, *others]))) == silent


def test_a_member_that_was_removed_meanwhile() -> None:
    history = group(90, members=[life("c1", 0, 35, session_timeout_ms=120_000), life("c2")])
    (found,) = of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", range(0, 90, 3)))
    assert found.severity == "warning"
    assert "when the coordinator had removed it" in found.text


def test_a_member_that_falls_silent_before_its_interval_is_known() -> None:
    history = group(90, members=[life("c1", 0, 32, session_timeout_ms=30_000), life("c2")])
    rows = beats("c1", [1, 2, 45]) + beats("c2", range(0, 90, 3))
    (found,) = of("frozen_member", history, rows)
    assert found.text.startswith("c1 (10.0.0.1) was silent for 43.0 s, longer than its session timeout of 30.0 s, and")
    assert found.threshold == 30_000
    unknown = group(90, members=[life("c1", session_timeout_ms=None), life("c2")])
    assert of("frozen_member", unknown, rows) == []


def test_each_life_of_a_member_id_is_looked_at() -> None:
    history = group(90, members=[life("c1", 0, 35), life("c2"), life("c1", 60)])
    (found,) = of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", range(0, 90, 3)))
    assert (found.subject, found.from_ns // SECOND) == ("c1", 27)


def test_a_gap_in_the_capture_is_not_a_silence() -> None:
    history = group(90, members=[life("c1"), life("c2")])
    assert of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", WITH_A_GAP)) == []


def test_waiting_for_a_response_is_not_a_silence() -> None:
    history = group(90, members=[life("c1"), life("c2")])
    waits = exchange("JoinGroup", 28, answered_ns=int(49.5e9))
    assert of("frozen_member", history, [*beats("c1", WITH_A_GAP), waits, *beats("c2", range(0, 90, 3))]) == []


def test_a_member_that_left_is_not_silent() -> None:
    history = group(90, members=[life("c1", 0, 27), life("c2")])
    assert of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", range(0, 90, 3))) == []
    assert of("frozen_member", history, [exchange("JoinGroup", 1, member_id="")]) == []
    assert of("frozen_member", history) == []


def test_the_poll_is_measured_when_the_client_is_back() -> None:
    lives = [
        life("c1", 0, 100, why_left="poll timeout", rebalance_timeout_ms=60_000),
        life("c1", 130, member_id="c1-again"),
        life("c2"),
    ]
    (found,) = of("slow_polls", group(200, members=lives))
    assert (found.severity, found.subject, found.value) == ("warning", "c1", 1)
    assert found.text == (
        "c1 (10.0.0.1) did not poll within max.poll.interval.ms (60.0 s) and left the group; the longest took 90.0 s, "
        "by when it joined again"
    )
    assert "max.poll.interval.ms above 90.0 s" in found.advice


def test_a_client_that_does_not_come_back() -> None:
    (found,) = of(
        "slow_polls", group(members=[life("c1", 0, 100, why_left="poll timeout", rebalance_timeout_ms=60_000)])
    )
    assert found.text.endswith("the poll took more than 60.0 s: the client has not come back")
    assert "above the longest time between polls" in found.advice


def test_a_member_that_left_in_order_is_normal() -> None:
    assert of("slow_polls", group(members=[life("c1", 0, 100)])) == []


def beating(
    interval_s: float, session_s: float, *, late_s: Iterable[float] = (), client: str = "c1", joins: int = 1
) -> list[Exchange]:
    """Heartbeats for four minutes; those of `late_s` seconds after the one before are refused, and it joins anew."""
    where = {"connection": f"10.0.0.1:1-10.0.0.9:9092#{client}", "client_id": client, "member_id": f"{client}-id"}
    join = {**where, "session_timeout_ms": int(session_s * 1000)}
    rows, now, late = [exchange("JoinGroup", 0, **join)] * joins, 1.0, list(late_s)
    while now < 240:
        rows.append(exchange("Heartbeat", now, **where))
        if late:
            now += late.pop()
            rows.append(exchange("Heartbeat", now, error_code=25, **where))
            now += 0.1
            rows.append(exchange("JoinGroup", now, **{**join, "member_id": ""}))
        now += interval_s
    return rows


@pytest.mark.parametrize(
    ("interval_s", "session_s", "late_s", "severity"),
    [
        (2.9, 3.0, [3.1, 3.05], "warning"),
        (9.5, 10, [10.2], "warning"),
        (28, 30, [30.5, 31], "warning"),
        (2.2, 3.0, [3.2], "warning"),
        (2.99, 3.0, [2.994], "warning"),  # the coordinator had counted from when it handled the request before
        (2.9, 3.0, [], "info"),
        (3.0, 10, [10.4], None),  # the default: it stood still for three heartbeats
        (3.0, 45, [], None),
        (3.0, 6.0, [], None),
        (1.0, 3.0, [3.2], None),
    ],
)
def test_heartbeats_that_leave_the_session_no_room(
    interval_s: float, session_s: float, late_s: list[float], severity: str | None
) -> None:
    history = group(250, members=[life("c1")])
    found = of("tight_heartbeats", history, beating(interval_s, session_s, late_s=late_s))
    assert [each.severity for each in found] == ([severity] if severity else [])
    if severity == "warning":
        assert f"heartbeats {interval_s:.1f} s apart with a session of {session_s:.1f} s" in found[0].text


def test_heartbeats_that_a_handler_delays_are_not_set_so() -> None:
    """kafkajs sends them between batches: some are 3 s apart, most as far as its handler takes."""
    rows = beating(8, 10)
    quick = [exchange("Heartbeat", 300 + 5.0 * n, connection=rows[0].connection) for n in range(3)]
    assert of("tight_heartbeats", group(400, members=[life("c1")]), rows)
    assert of("tight_heartbeats", group(400, members=[life("c1")]), [*rows, *quick]) == []


def test_a_slow_leader_has_no_tight_heartbeats() -> None:
    """Its heartbeats are a second apart; each SyncGroup comes when its session is over, and a join lies behind it."""
    where = {"connection": "10.0.0.1:1-10.0.0.9:9092#1", "client_id": "c1", "member_id": "c1-id"}
    rows = []
    for start in range(0, 200, 5):
        rows.append(exchange("JoinGroup", start, session_timeout_ms=3_000, **{**where, "member_id": ""}))
        rows.append(exchange("SyncGroup", start + 3.1, error_code=25, **where))
        rows.append(exchange("Heartbeat", start + 4, **where))
    assert of("tight_heartbeats", group(250, members=[life("c1")]), rows) == []


def test_what_tight_heartbeats_explain_is_not_said_twice() -> None:
    exchanges = beating(2.9, 3.0, late_s=[3.1] * 12)
    lives = [life("c1", 5 * n, 5 * n + 4, member_id=f"c1-{n}", why_left="session timeout") for n in range(12)]
    rows = [rebalance(n, 5 * n, Cause.NEW_MEMBER, "c1") for n in range(12)]
    history = group(250, members=lives, rebalances=rows)
    assert of("tight_heartbeats", history, exchanges)
    for detector in ("refused", "flapping_member", "storm"):
        assert of(detector, history, exchanges) == []
        assert of(detector, history, beating(1.0, 3.0, late_s=[3.1] * 12)), "of other clients it is said"


def test_a_frozen_process_is_not_explained_by_its_heartbeats() -> None:
    [found] = of("tight_heartbeats", group(250, members=[life("c1")]), beating(2.9, 3.0, late_s=[20]))
    assert found.severity == "info"


def test_one_that_is_back_within_its_session_was_restarted() -> None:
    """A log of a broker: nothing but joins and ends of sessions."""
    starts = range(0, 80, 4)
    lives = [
        life("w", s, s + 9, member_id=f"w-{s}", why_left="session timeout", session_timeout_ms=None) for s in starts
    ]
    (found,) = of("flapping_member", group(90, members=lives))
    assert "a crash loop; it was lost by a restart of its process (19 x)" in found.text
    assert "exit code" in found.advice
    apart = [life("w", s, s + 3, member_id=f"w-{s}", why_left="session timeout") for s in starts]
    (found,) = of("flapping_member", group(90, members=apart))
    assert "crash loop" not in found.text
    assert "garbage collections" in found.advice


SESSION = "session timeout"


def removed(*spans: tuple[float, float], **more: object) -> list[MemberLife]:
    """Lives of one client in a broker's log, each removed on heartbeat expiration but for the last."""
    known = {"client_host": None, "why_left": SESSION, "session_timeout_ms": None, **more}
    lives = [life("w", a, b, **{**known, "member_id": f"w-{a}"}) for a, b in spans]
    lives[-1].left_ns = lives[-1].why_left = None
    return [life("other", client_host=None), *lives]


def logged(lives: list[MemberLife], assigned_s: Iterable[float] = ()) -> GroupHistory:
    generations = [generation(n, s) for n, s in enumerate(assigned_s, 1)]
    return group(120, members=lives, generations=generations, origin="text")


@pytest.mark.parametrize("session_s", [2, 3, 6, 10, 30])
@pytest.mark.parametrize("late_s", [0.003, 0.045, 0.9])
def test_a_client_that_is_there_again_at_once_lives(session_s: float, late_s: float) -> None:
    step = session_s + late_s
    history = logged(removed(*((n * step, n * step + session_s) for n in range(4))))
    (found,) = of("tight_heartbeats", history)
    assert found.text.startswith("w was removed on heartbeat expiration 3 times within")
    assert "its process lives, and its heartbeats come later than its session allows" in found.text
    assert f"which is {session_s}.0 s at most" in found.text
    for detector in ("flapping_member", "expired_member", "storm"):
        assert of(detector, history) == []
    assert of("tight_heartbeats", group(120, members=history.members)) == [], "captures have the settings"


def tight_rdkafka(times: int = 8) -> GroupHistory:
    """A client of librdkafka: heartbeats every 1.9 s, session of 2 s; its answer is late, and it joins anew."""
    starts = [4 * n for n in range(times)]
    return logged(removed(*((s, s + 5.4) for s in starts)), [s + 1.4 for s in starts])


def test_a_client_back_before_its_session_is_over_may_live() -> None:
    (found,) = of("tight_heartbeats", tight_rdkafka())
    assert (
        "7 times within 24.0 s, and had joined anew 1.4 s before: its process ends and is started, or it" in found.text
    )
    assert of("flapping_member", tight_rdkafka()) == []


@pytest.mark.parametrize("session_s", [6, 10, 45])
@pytest.mark.parametrize("lived_s", [0.3, 2.5, 2.9])
def test_one_back_long_before_that_is_another_process(session_s: float, lived_s: float) -> None:
    starts = [4 * n for n in range(6)]
    lives = removed(*((s, s + 1 + lived_s - 0.2 + session_s) for s in starts))
    (found,) = of("flapping_member", logged(lives, [s + 1 for s in starts]))
    assert "a crash loop; it was lost by a restart of its process (5 x)" in found.text
    assert of("tight_heartbeats", logged(lives, [s + 1 for s in starts])) == []

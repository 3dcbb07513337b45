"""The screen: what a group waits for, what is not shown, order, and lines that fit."""

from __future__ import annotations

from kcoord_wire.watch.seen import Unanswered
from kcoord_wire.watch.view import group_lines, headline, plain, screen, view_to_json
from tests.support.watching import SECOND, Script, group, member

STABLE = group("Stable", member("c-1", 0, 1), member("c-2", 2))


def lines(script: Script, until_ms: float | None = None) -> list[str]:
    found = group_lines(script.view(), now=script.now + SECOND, until_ms=until_ms)
    return [plain(line) for line in found]


def test_a_stable_group_with_lag() -> None:
    script = Script()
    for second in range(14):
        script.poll(STABLE, seconds=5, committed={0: 0, 2: 5}, ends={0: 600 * second, 2: 8})
    state, one, two = lines(script)
    assert state == "billing  Stable for at least 1 min 6 s  2 members  lag 7,803  grows: orders/0 +120/s".replace(
        "1 min 6 s", "66 s"
    )
    assert one == "  c-1 (10.0.0.1)  orders 0-1  lag 7,800"
    assert two == "  c-2 (10.0.0.2)  orders 2  lag 3"


def test_whom_a_rebalance_waits_for_and_until_when() -> None:
    script = Script()
    script.poll(STABLE)
    script.poll(group("PreparingRebalance", member("c-1"), member("c-2"), member("c-3")))
    _, why, waits, *_ = lines(script)
    assert why == "  rebalance #1: new member (80%): c-3 (10.0.0.3) joined"
    assert waits == (
        "  waits (until when is not shown; --rebalance-timeout S, if you know it) for those of c-1 (10.0.0.1), c-2 "
        "(10.0.0.2) that have not rejoined (who has is not shown)"
    )
    assert lines(script, 300_000)[2].startswith("  waits until 12:05:02 UTC at the latest for those of c-1")
    script.poll(group("CompletingRebalance", member("c-1"), member("c-2"), member("c-3")))
    assert "assignment of its leader" in lines(script)[2]


def test_the_new_protocol_waits_for_named_members() -> None:
    script = Script()
    one = member("c-1", 0, target=(0,))
    script.poll(group("Stable", one, protocol="consumer"))
    script.poll(group("Reconciling", one, member("c-2", target=(1,)), protocol="consumer"))
    assert lines(script)[2].endswith(" for c-2 (10.0.0.2) to take over the target assignment")


def test_trouble_comes_first() -> None:
    script = Script()
    names = [group("Stable", member("c-1", 0), name=name) for name in ("a", "b")]
    script.poll(*names, STABLE)
    script.poll(
        *names,
        group("PreparingRebalance", member("c-1"), member("c-2")),
        unanswered={"z": Unanswered("refused", "Group authorization failed.")},
    )
    shown = screen(
        script.watched.snapshot, ["12:00:02 x"], source="k1", now=script.now, height=30, width=100, until_ms=None
    )
    heads = [plain(line).split()[0] for line in shown[2:] if line and not line.startswith("  ")]
    assert heads == ["z", "billing", "a", "b", "12:00:02"]


def test_a_screen_fits() -> None:
    script = Script()
    script.poll(*(group("Stable", *(member(f"c-{n}", n) for n in range(20)), name=f"g-{i}") for i in range(30)))
    shown = screen(
        script.watched.snapshot, ["x" * 500] * 50, source="k1", now=script.now, height=24, width=60, until_ms=None
    )
    assert len(shown) <= 24
    assert max(len(plain(line)) for line in shown) == 60
    assert any("more groups; --group ID" in line for line in shown)


def test_an_outage_is_in_the_headline() -> None:
    script = Script()
    script.poll(STABLE)
    script.miss(seconds=7)
    text = plain(headline(script.watched.snapshot, source="k1:9092", now=script.now))
    assert text.endswith("no answer: Connection refused; last answer 7.0 s ago")


def test_names_of_peers_are_printable() -> None:
    script = Script()
    script.poll(group("Stable", member("c\x1b[2J-1", 0), name="g\r\n\x1b[31m"))
    (view,) = script.watched.snapshot.groups
    assert all(character.isprintable() for line in group_lines(view, now=0) for character in plain(line))


def test_json_of_a_group() -> None:
    script = Script()
    script.poll(STABLE, committed={0: 1}, ends={0: 4})
    plain_view = view_to_json(script.view())
    assert (plain_view["state"], plain_view["lag"], plain_view["lags"]) == ("Stable", 3, [["orders", 0, 3]])
    assert plain_view["members"][1] == {"name": "c-2 (10.0.0.2)", "partitions": [["orders", 2]], "lag": None}

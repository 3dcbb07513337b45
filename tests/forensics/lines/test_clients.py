"""Groups as their clients log them: what recordings do not show."""

from __future__ import annotations

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory
from tests.support.text_logs import history_of, parse


def logged(*lines: tuple[str, str]) -> GroupHistory:
    """The history in lines of Java clients, each with its client's name, that follow one another by a second."""
    text = "\n".join(
        f"2026-11-22 12:00:{second:02}.000 INFO [Consumer clientId={client}, groupId=g] {line}"
        for second, (client, line) in enumerate(lines)
    )
    return history_of(parse(text))


def joined(generation: int, client: str) -> tuple[str, str]:
    member = f"{client}-b542b773-d427-4892-9760-92cf58a9215a"
    return client, (
        f"Successfully joined group with generation Generation{{generationId={generation}, memberId='{member}', "
        "protocol='range'}"
    )


def test_a_poll_timeout_alone_has_an_unknown_end() -> None:
    text = (
        "%4|1795348803.123|MAXPOLL|c#consumer-1| [thrd:main]: Application maximum poll "
        "interval (300000ms) exceeded by 8ms"
    )
    text = f'%7|1795348800.000|CGRPCOORD|c#consumer-1| [thrd:main]: Group "g" coordinator is b:9092 id 1\n{text}'
    [row] = history_of(parse(text)).rebalances
    assert (row.cause, row.client_id, row.outcome, row.ended_ns) == (Cause.POLL_TIMEOUT, "c", "unseen", None)


def test_clients_of_one_generation_share_a_rebalance() -> None:
    history = logged(("a", "(Re-)joining group"), ("b", "(Re-)joining group"), joined(1, "a"), joined(1, "b"))
    [row] = history.rebalances
    assert (row.generation_id, row.members_after, row.client_id) == (1, 2, "a")


def test_what_another_member_set_off_is_unknown() -> None:
    history = logged(
        ("a", "(Re-)joining group"), joined(1, "a"),
        ("a", "Attempt to heartbeat failed since group is rebalancing"), ("a", "(Re-)joining group"), joined(2, "a"),
    )  # fmt: skip
    second = history.rebalances[1]
    assert (second.cause, second.client_id, second.confidence) == (Cause.UNKNOWN, None, 0.2)
    assert "log is not among the sources" in second.detail


def test_a_clients_reason_is_the_cause() -> None:
    history = logged(
        joined(1, "a"),
        (
            "a",
            "Request joining group due to: cached metadata has changed from x at the beginning of the rebalance to y",
        ),
        ("a", "(Re-)joining group"),
        joined(2, "a"),
    )
    assert (history.rebalances[1].cause, history.rebalances[1].confidence) == (Cause.TOPICS_CHANGED, 0.95)


def test_only_clients_logs_are_said_to_be_there() -> None:
    assert any("Only clients' logs" in sentence for sentence in logged(joined(1, "a")).group.blind)

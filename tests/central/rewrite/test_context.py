"""What the parts of the rewrite's coordinator share: answers once, and the end of the term after an error."""

from __future__ import annotations

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.context import Outbox
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.kernel.machines import Close, LogEvent, Send
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.zookeeper.requests import Ask, Outcome, Read, Replied

BEAT = m.HeartbeatRequest(group_id="g")


def test_a_request_is_answered_once() -> None:
    outbox = Outbox()
    outbox.connections[1] = BEAT
    outbox.answer(1, m.HeartbeatResponse())
    outbox.answer(1, m.HeartbeatResponse())
    outbox.refuse(1, RewriteError.ILLEGAL_GENERATION)
    outbox.answer(2, m.HeartbeatResponse())
    outbox.answer(None, m.HeartbeatResponse())
    assert outbox.drain() == [Send(1, m.HeartbeatResponse())]
    assert outbox.drain() == []


def test_a_refusal_with_a_reason_is_noted() -> None:
    outbox = Outbox()
    outbox.connections[1] = BEAT
    outbox.refuse(1, RewriteError.INVALID_REQUEST, "because")
    note, send = outbox.drain()
    assert isinstance(note, LogEvent)
    assert (note.facts["group"], note.facts["reason"]) == ("g", "because")
    assert send == Send(1, m.HeartbeatResponse(error_code=42))


def test_a_connection_is_closed_once_and_gets_nothing_more() -> None:
    outbox = Outbox()
    outbox.connections[1] = BEAT
    outbox.close(1)
    outbox.close(1)
    outbox.answer(1, m.HeartbeatResponse())
    assert outbox.drain() == [Close(1)]


def test_an_error_that_no_procedure_catches_breaks_the_term() -> None:
    def procedure() -> Procedure:
        yield Read("/a")

    outbox = Outbox()
    outbox.start(procedure())
    (ask,) = outbox.drain()
    assert isinstance(ask, Ask)
    assert outbox.broken == ""
    outbox.procedures.replied(Replied(ask.token, Outcome.NO_AUTH), 0)
    assert "not authorized" in outbox.broken

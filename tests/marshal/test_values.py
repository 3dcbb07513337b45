"""Values of foreign writers."""

from __future__ import annotations

import pytest

from kcoord_wire.errors import EncodeError
from kcoord_wire.marshal.log import RawEntry
from kcoord_wire.marshal.values import MAX_VALUE, check_id, read_entry, read_value
from kcoord_wire.marshal.world_state import Unreadable
from kcoord_wire.messages.marshal import Heartbeat
from tests.support.marshal_garbage import GARBAGE


@pytest.mark.parametrize(("value", "kind"), GARBAGE.values(), ids=GARBAGE)
def test_what_is_no_message_becomes_the_reason(value: bytes | None, kind: str) -> None:
    message = read_entry(RawEntry(0, 5, -1, False, value)).message
    assert isinstance(message, Unreadable)
    assert message.kind == kind
    assert 0 < len(message) < 300


def test_a_value_of_the_greatest_length_is_read() -> None:
    zeros = b"0" * (MAX_VALUE - len(b"Heartbeat/1/2/ii/cl/gr/t/1/9"))
    message = read_value(b"Heartbeat/1/2/ii/cl/gr/t/1/" + zeros + b"9")
    assert isinstance(message, Heartbeat)


def test_a_message_keeps_its_place_in_the_log() -> None:
    entry = read_entry(RawEntry(3, 5, 1000, True, b"Heartbeat/1/2/ii/cl/gr/t/1/9"))
    assert entry[:4] == (3, 5, 1000, True)
    assert isinstance(entry.message, Heartbeat)
    assert entry.message.current_offset == 9


@pytest.mark.parametrize("wrong", ["", "a/b", "\ud800"])
def test_ids_that_nobody_could_read_are_refused(wrong: str) -> None:
    with pytest.raises(EncodeError):
        check_id("client_id", wrong)
    assert check_id("client_id", "cl-1") == "cl-1"

"""The repr of messages leaves defaults out, and evaluates to an equal message."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.codec.registry import MessageCodec, make_classes
from tests.support.strategies import versioned_messages

CODECS = [kw.registry[name] for name in ("JoinGroupRequest", "FetchResponse", "MetadataResponse", "OffsetCommitValue")]


def names_of(classes: Mapping[str, type]) -> dict[str, Any]:
    return {**classes, "UUID": uuid.UUID}


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@given(data=st.data())
def test_a_repr_makes_an_equal_message(codec: MessageCodec, data: st.DataObject) -> None:
    _, message = data.draw(versioned_messages(codec))
    assert eval(repr(message), names_of(codec.classes)) == message


def test_what_is_left_alone_is_left_out() -> None:
    request = kw.JoinGroupRequest(group_id="g", protocols=[kw.JoinGroupRequestProtocol(name="range")])
    assert repr(request) == "JoinGroupRequest(group_id='g', protocols=[JoinGroupRequestProtocol(name='range')])"
    assert repr(kw.JoinGroupRequest()) == "JoinGroupRequest()"


def test_null_and_other_types_than_the_default_are_shown() -> None:
    assert repr(kw.JoinGroupRequest(group_instance_id="")) == "JoinGroupRequest(group_instance_id='')"
    assert repr(kw.HeartbeatResponse(error_code=False)) == "HeartbeatResponse(error_code=False)"
    assert repr(kw.JoinGroupRequest(reason=None, protocols=None)) == "JoinGroupRequest(protocols=None)"  # type: ignore[arg-type]  # a mistake is seen


def test_a_message_that_contains_itself_has_an_end() -> None:
    message = kw.JoinGroupRequest()
    message.protocols.append(message)  # type: ignore[arg-type]  # a mistake is seen
    assert repr(message) == "JoinGroupRequest(protocols=[...])"


def test_compiled_classes_have_it_too() -> None:
    cls = make_classes(kw.registry["HeartbeatRequest"].schema)["HeartbeatRequest"]
    assert repr(cls(group_id="g")) == "HeartbeatRequest(group_id='g')"

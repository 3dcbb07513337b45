"""Every version of every request can be refused, with a text that fits into the answer."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator.core.apis import bounded, refusal
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.group_states import GROUP_REQUESTS
from tests.support.scripted import NEWEST


@pytest.mark.parametrize("request_type", NEWEST, ids=lambda cls: cls.__name__)
def test_every_version_of_every_request_can_be_refused(request_type: type) -> None:
    codec = kw.registry.by_class(request_type)
    for version in codec.valid_versions:
        for message in (request_type(), GROUP_REQUESTS.get(request_type, request_type())):
            answer = refusal(message, version, E.NOT_COORDINATOR)
            data = kw.encode(answer, version)
            kw.decode(type(answer), data, version)


def test_the_text_of_an_error_is_cut() -> None:
    assert bounded("x" * 1_000) == "x" * 1_000
    assert bounded("x" * 32_767) == "x" * 999 + "…"

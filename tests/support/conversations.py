"""Conversations of clients with a broker, drawn at random, as frames."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import kcoord_wire as kw
from kcoord_wire.forensics.exchanges.decode import APIS
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.protocol.api_keys import ApiKey
from tests.support.wire_samples import Talk, batch, match_all, mixed

CAPTURES = Path(__file__).parents[1] / "data" / "captures"


NAMES = ["aiokafka", "cooperative", "eager_range", "static_bounce"]


GROUP_APIS = [key for key in APIS if key != ApiKey.METADATA]


VERSIONS = [(key, version) for key in GROUP_APIS for version in kw.registry.request(key).valid_versions]


SUBSCRIPTION = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=["orders"], generation_id=4), 2)


def heartbeat(talk: Talk, id_: int, answered: bool = True, member: str = "m") -> None:
    talk.ask(kw.HeartbeatRequest(group_id="g", member_id=member, generation_id=id_), 0, id_)
    if answered:
        talk.answer(kw.HeartbeatResponse(), 0, id_)


def of(*talks: Talk) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Matcher]:
    return match_all([batch(mixed(talks, random.Random(0)))])

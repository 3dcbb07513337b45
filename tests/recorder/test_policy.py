"""What the recorder does with each api."""

from __future__ import annotations

from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey
from kcoord_wire.recorder.policy import GROUP_APIS, NUMBERS, RECORDED, REWRITTEN, TRACKED, plan_of


def test_the_apis_of_groups_are_recorded() -> None:
    """By their names: every api of Kafka's that is about a group, four to reach it, and where partitions end."""
    plan = plan_of("group", rewrite=False)
    recorded = {key for key in API_NAMES if plan(key) & RECORDED}
    assert recorded == GROUP_APIS
    assert {plan(key) for key in GROUP_APIS} == {TRACKED | RECORDED}
    assert {ApiKey.JOIN_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.OFFSET_COMMIT, ApiKey.METADATA} < recorded
    assert {key for key in API_NAMES if plan(key) & NUMBERS} == {ApiKey.FETCH}
    assert recorded.isdisjoint({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


def test_all_records_everything_but_passwords() -> None:
    plan = plan_of("all", rewrite=False)
    assert {key for key in range(200) if not plan(key) & RECORDED} == {ApiKey.SASL_AUTHENTICATE}
    assert plan(ApiKey.PRODUCE) == RECORDED, "it may have no response, so none is waited for"


def test_only_responses_with_addresses_are_rewritten() -> None:
    for apis in ("group", "all"):
        plan = plan_of(apis, rewrite=True)
        rewritten = {key for key in range(200) if plan(key) & REWRITTEN}
        assert rewritten == {ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER}

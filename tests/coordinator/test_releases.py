"""The coordinator as a release of Kafka: what is advertised, what is refused, and what clients make of it."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.registry import registry
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.coordinator.core.apis import SERVED
from kcoord_wire.coordinator.topics.releases import RELEASES, served_by
from kcoord_wire.protocol.api_keys import ApiKey
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import VERSIONS, become_stable
from tests.support.wire import Wire


def advertised(c: Coordinator, version: int = 3) -> dict[int, tuple[int, int]]:
    with Wire(c.address) as wire:
        answer = wire.call(VERSIONS, version)
    assert answer.error_code == 0
    return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_has_no_more_than_is_served(release: str) -> None:
    found = served_by(release)
    assert all(set(versions) <= set(SERVED[api]) for api, versions in found.items())
    assert {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.API_VERSIONS} <= set(found)


def test_releases_grow() -> None:
    """No later release answers less than an earlier one, but for the oldest versions, which 4.0 dropped."""
    for earlier, later in pairwise(RELEASES):
        before, after = served_by(earlier), served_by(later)
        assert set(before) <= set(after)
        assert all(versions[-1] <= after[api][-1] for api, versions in before.items()), later


def test_landmarks() -> None:
    assert served_by("2.8")[ApiKey.FETCH][-1] == 12, "topic ids are KIP-516's, of 3.1"
    assert served_by("3.1")[ApiKey.FETCH][-1] == 13
    assert ApiKey.CONSUMER_GROUP_HEARTBEAT not in served_by("3.9")
    assert ApiKey.CONSUMER_GROUP_HEARTBEAT in served_by("4.0")
    assert served_by("2.3")[ApiKey.JOIN_GROUP][-1] == 5, "static members are KIP-345's, of 2.3"
    assert served_by("2.2")[ApiKey.JOIN_GROUP][-1] == 4
    assert served_by("2.8.1") == served_by("2.8") == served_by("2.8.2")


@pytest.mark.parametrize("release", ["", "2", "5.0", "0.10", "0.10.2", "2.8x", "latest"])
def test_unknown_releases(release: str) -> None:
    with pytest.raises(ValueError, match=r"is no known release of Kafka: 0\.11, 1\.0, .* 4\.4"):
        Coordinator(as_version=release)
    with pytest.raises(TypeError, match="as_version must be a str"):
        Coordinator(as_version=2.8)  # type: ignore[arg-type]  # as a user might


@pytest.mark.parametrize("release", RELEASES)
def test_every_version_that_is_advertised_is_served(coordinator: StartCoordinator, release: str) -> None:
    c = coordinator(as_version=release)
    oldest_produce = 3  # of all releases: the versions before carry messages in the formats that 0.11 has replaced
    found = {
        api: range(oldest_produce if api == ApiKey.PRODUCE and release >= "4" else oldest, newest + 1)
        for api, (oldest, newest) in advertised(c, 0).items()
    }
    assert found[ApiKey.PRODUCE][0] == oldest_produce
    with Wire(c.address) as wire:
        sent = []
        for api, versions in found.items():
            request = registry.request(api).cls()
            if isinstance(request, kw.ProduceRequest):
                request.acks = 1  # with 0, the default, there is no answer
            elif isinstance(request, kw.DescribeAclsRequest):  # with 0, UNKNOWN, Kafka closes the connection, too
                request.resource_type_filter = request.operation = request.permission_type = 1
            sent += [wire.send(request, version) for version in versions]
        for correlation_id in sent:
            assert wire.receive(correlation_id)
    assert len(sent) > 50


def test_newer_versions_are_refused(coordinator: StartCoordinator) -> None:
    c = coordinator(as_version="2.8")
    assert advertised(c)[ApiKey.JOIN_GROUP] == (0, 7)
    assert ApiKey.CONSUMER_GROUP_HEARTBEAT not in advertised(c)
    for request, version in (
        (kw.HeartbeatRequest(group_id="g"), 4),
        (kw.JoinGroupRequest(group_id="g"), 8),
        (kw.ConsumerGroupHeartbeatRequest(group_id="g"), 0),
    ):
        with Wire(c.address) as wire:
            wire.send(request, version)
            assert wire.is_closed_by_peer() == (version != 4)


def test_a_newer_api_versions_is_answered_in_version_0(coordinator: StartCoordinator) -> None:
    """KIP-511: so that the client learns which version it may use."""
    c = coordinator(as_version="2.0")
    with Wire(c.address) as wire:
        body = kw.encode_request(VERSIONS, 3, correlation_id=1, client_id="c")
        wire.send_raw(kw.frame(body))
        wire._asked[1] = (18, 0)
        answer = wire.receive(1)
    assert answer.error_code == 35
    assert [(each.api_key, each.max_version) for each in answer.api_keys] == [(18, 2)]


@pytest.mark.parametrize("release", RELEASES)
def test_features_belong_to_kip_848(coordinator: StartCoordinator, release: str) -> None:
    c = coordinator(as_version=release)
    newest = served_by(release)[ApiKey.API_VERSIONS][-1]
    with Wire(c.address) as wire:
        answer = wire.call(VERSIONS, newest)
    assert (answer.error_code, bool(answer.finalized_features)) == (0, RELEASES.index(release) >= RELEASES.index("4.0"))


KAFKA_PYTHON = """
import sys
from kafka import KafkaProducer
for address in sys.argv[1:]:
    producer = KafkaProducer(bootstrap_servers=address)
    producer.send("orders", b"x").get(60)
    print(*producer.config["api_version"][:2], sep=".")
    producer.close()
"""


@pytest.mark.slow
def test_a_client_recognises_the_release(coordinator: StartCoordinator) -> None:
    """kafka-python has a table of its own, from which it infers the release of a broker by its ApiVersions.

    It knows 2.5 to 2.7 by apis that the coordinator does not have.
    """
    releases = ["0.11", "1.0", "1.1", "2.0", "2.1", "2.3", "2.4", "2.8", "3.0", "3.5", "3.7", "3.9"]
    addresses = [coordinator(as_version=release).address for release in releases]
    command = [sys.executable, "-W", "ignore", "-c", KAFKA_PYTHON, *addresses]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == releases, done.stderr


def test_without_a_release_all_is_served(coordinator: StartCoordinator) -> None:
    c = coordinator()
    assert set(advertised(c)) >= {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.JOIN_GROUP}
    with Wire(c.address) as wire:
        become_stable(wire, "g")

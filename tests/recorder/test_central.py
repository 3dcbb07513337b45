"""The recorder's view of a connection of the 0.8 draft: when it is one, and which frames name brokers."""

from __future__ import annotations

import kcoord_wire as kw
from kcoord_wire.messages import central as m
from kcoord_wire.recorder.central import CentralTraffic
from tests.support.wire_samples import Talk

REGISTER = kw.encode_request(m.RegisterConsumerRequest(group_id="g", consumer_id="c"), 0)


def test_the_first_frame_of_a_client_decides() -> None:
    assert CentralTraffic.opens(b"\x00\x05", 2)
    assert CentralTraffic.opens(REGISTER[:10], len(REGISTER))
    assert not CentralTraffic.opens(b"\x00\x05\x00\x00", 4)
    assert not CentralTraffic.opens(b"\x00\x06", 2)
    assert not CentralTraffic.opens(b"", 0)


def test_no_request_of_kafka_opens_a_connection_of_the_draft() -> None:
    for codec in (codec for codec in kw.registry.values() if (codec.family, codec.type) == ("kafka", "request")):
        talk = Talk(1)
        for version in codec.valid_versions:
            talk.ask(codec.cls(), version, version)
        assert not any(CentralTraffic.opens(frame.frame[:10], len(frame.frame)) for frame in talk.frames)
    for version in range(9):  # UpdateMetadata has the draft's type id, and no schema here
        body = b"\x00\x06" + version.to_bytes(2) + (7).to_bytes(4) + b"\x00\x01c" + bytes(20)
        assert not CentralTraffic.opens(body[:10], len(body))


def test_brokers_are_named_in_cluster_metadata_and_start_fetcher() -> None:
    traffic = CentralTraffic()
    traffic.from_consumer(b"\x00\x05")
    traffic.from_consumer(REGISTER[:2])
    found = [
        traffic.from_coordinator(head) for head in (b"\x00\x00", b"\x00\x00", b"\x00\x07", b"\x00\x09", b"\x00\x00")
    ]
    assert [None if each is None else (each[0].name, each[1]) for each in found] == [
        ("ClusterMetadataResponse", 0),
        None,
        None,
        ("StartFetcherRequest", 2),
        None,
    ]

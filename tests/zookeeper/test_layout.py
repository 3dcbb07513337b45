"""The old consumers' layout (section 4 of the draft), and the brokers' registrations."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.zookeeper import layout
from kcoord_wire.zookeeper.layout import BROKER_IDS, ROOTS, Brokers, broker_record
from kcoord_wire.zookeeper.requests import (
    Ask,
    Create,
    Delete,
    Fired,
    Node,
    Outcome,
    Read,
    ReadChildren,
    Replied,
    SessionChanged,
    SessionState,
)


def test_paths_are_those_of_the_draft() -> None:
    assert layout.COORDINATOR == "/consumers/coordinator"
    assert layout.broker_path(3) == "/brokers/ids/3"
    assert layout.topic_path("orders") == "/brokers/topics/orders"
    assert layout.owner_path("g", "orders", "3-0") == "/consumers/g/owners/orders/3-0"
    assert layout.offset_path("g", "orders", "3-0") == "/consumers/g/offsets/orders/3-0"


def test_a_brokers_registration_is_read_back() -> None:
    assert layout.parse_broker(layout.broker_record("h", 9092)) == ("h", 9092)


JUNK = [b"x", b"[]", b"{}", b'{"host": 1, "port": 2}', b'{"host": "h", "port": "2"}', b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("data", JUNK)
def test_other_data_is_refused_with_what_it_should_be(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^not a broker's registration: "):
        layout.parse_broker(data)
    with pytest.raises(ValueError, match=r"^not a group's record: "):
        layout.parse_group(data)


OWN = BrokerAddress(1, "a", 9_092)
OTHER = BrokerAddress(2, "b", 9_093)
RECORD, OTHERS_RECORD = broker_record("a", 9_092), broker_record("b", 9_093)
REGISTRATION = Create("/brokers/ids/1", RECORD, is_ephemeral=True)


class Broker:
    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.failed: list[str] = []
        self.brokers = Brokers(OWN, self.asks.append, count(1), self.failed.append)
        self.brokers.handle(SessionChanged(SessionState.CONNECTED, 7, 9_000), 0)
        for root in ROOTS:
            self.answer(Create(root), Outcome.NODE_EXISTS)

    def answer(self, expected: Any, outcome: Outcome = Outcome.OK, value: Any = None) -> None:
        ask = self.asks.pop(0)
        assert ask.request == expected
        self.brokers.handle(Replied(ask.token, outcome, value), 0)

    def list(self, *brokers: BrokerAddress) -> None:
        self.answer(ReadChildren(BROKER_IDS, watch=True), value=tuple(str(broker.broker_id) for broker in brokers))
        for broker in brokers:
            data = broker_record(broker.host, broker.port)
            self.answer(Read(f"/brokers/ids/{broker.broker_id}"), value=Node(data, 0, 7))


def test_a_broker_registers_itself_and_follows_the_list() -> None:
    broker = Broker()
    broker.answer(Read("/brokers/ids/1"))
    broker.answer(REGISTRATION)
    broker.list(OWN)
    assert (broker.brokers.known, broker.asks) == ({1: OWN}, [])
    broker.brokers.handle(Fired(BROKER_IDS, of_children=True), 1)
    broker.answer(Read("/brokers/ids/1"), value=Node(RECORD, 0, 7))
    broker.list(OWN, OTHER)
    assert broker.brokers.known == {1: OWN, 2: OTHER}


def test_the_registration_of_a_former_session_is_replaced() -> None:
    broker = Broker()
    broker.answer(Read("/brokers/ids/1"), value=Node(RECORD, 0, 6))
    broker.answer(Delete("/brokers/ids/1", 0))
    broker.answer(REGISTRATION)
    broker.list(OWN)
    assert broker.failed == []


def test_another_broker_with_the_same_id_keeps_it() -> None:
    broker = Broker()
    broker.answer(Read("/brokers/ids/1"), value=Node(OTHERS_RECORD, 0, 6))
    assert (len(broker.failed), broker.asks, broker.brokers.deadline) == (1, [], 500)
    broker.brokers.handle(None, 500)
    broker.answer(Read("/brokers/ids/1"))
    broker.answer(REGISTRATION)


def test_a_registration_that_was_deleted_is_made_again() -> None:
    broker = Broker()
    broker.answer(Read("/brokers/ids/1"), value=Node(RECORD, 0, 7))
    broker.list(OTHER)
    broker.answer(Read("/brokers/ids/1"))
    broker.answer(REGISTRATION)
    broker.list(OWN, OTHER)
    assert broker.asks == []


def test_a_registration_that_cannot_be_read_is_left_out() -> None:
    broker = Broker()
    broker.answer(Read("/brokers/ids/1"), value=Node(RECORD, 0, 7))
    broker.answer(ReadChildren(BROKER_IDS, watch=True), value=("1", "2", "x"))
    broker.answer(Read("/brokers/ids/1"), value=Node(RECORD, 0, 7))
    broker.answer(Read("/brokers/ids/2"), value=Node(b"{}", 0, 9))
    assert (broker.brokers.known, len(broker.failed)) == ({1: OWN}, 1)

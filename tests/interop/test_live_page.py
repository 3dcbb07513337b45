"""The live page of the control port in headless Chromium: groups, owners, and a rebalance as it happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

import kcoord_wire as kw
from kcoord_wire.control import ControlServer
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.browser import CHECKS, Page
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import become_stable, join_request
from tests.support.waiting import eventually
from tests.support.wire import Wire

HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'&"


class Live(Page):
    """The page of one coordinator in the browser."""

    def __init__(self, browser: Chrome, coordinator: Coordinator, control: ControlServer) -> None:
        super().__init__(browser)
        self.coordinator = coordinator
        self.control = control

    def open(self, address: str) -> None:
        self.browser.get("about:blank")
        self.load(address)

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])]"
            ".filter((each) => each.checkVisibility()).map((each) => each.textContent)",
            selector,
        )
        return found

    def wait(self, selector: str, *wanted: str) -> None:
        """Until the visible elements of a selector have these texts, in this order, each as a part."""

        def are_there(found: list[str]) -> bool:
            return len(found) == len(wanted) and all(part in text for part, text in zip(wanted, found, strict=True))

        eventually(lambda: self.texts(selector), f"of {selector}, not {wanted}", until=are_there, every=0.02)


@pytest.fixture
def live(browser: Chrome, coordinator: StartCoordinator) -> Iterator[Live]:
    c = coordinator()
    browser.set_window_size(1200, 900)
    with ControlServer(c) as control:
        page = Live(browser, c, control)
        page.open(control.page)
        page.wait("#source", f"live from {c.address}")
        yield page
        browser.get("about:blank")


def test_a_rebalance_as_it_happens(live: Live) -> None:
    live.wait("#none", "No groups yet")
    with (
        Wire(live.coordinator.address, client_id="first") as first,
        Wire(live.coordinator.address, client_id="second") as second,
    ):
        heartbeat = become_stable(first, "billing")
        live.wait(".card .badge", "Stable")
        live.wait(".card h2 span:first-child", "billing")
        live.wait(".card:first-child .live-chart .who", "first")
        live.wait(".card tbody:first-of-type th", "first", ":")  # the member, and when its rebalance began
        new = second.call(join_request("billing"), 9).member_id
        parked = second.send(join_request("billing", new), 9)
        live.wait(".progress", "new member by second; waits for first (JoinGroup)")
        live.wait(".card .badge", "PreparingRebalance")
        assert live.texts(".live-chart .who") == ["first", "second"]
        assert live.js("document.querySelectorAll('.live-chart .lane.awaited').length") >= 1
        assert first.call(heartbeat, 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        joined = first.send(join_request("billing", heartbeat.member_id), 9)
        generation = first.receive(joined).generation_id
        assert second.receive(parked).generation_id == generation == 2
        live.wait(".progress", "waits for first (SyncGroup), second (SyncGroup)")
        halves = {heartbeat.member_id: range(6), new: range(6, 12)}
        for wire, member in ((first, heartbeat.member_id), (second, new)):
            sync = kw.SyncGroupRequest(group_id="billing", generation_id=2, member_id=member)
            sync.protocol_type, sync.protocol_name = "consumer", "range"
            if wire is first:
                sync.assignments = [
                    kw.SyncGroupRequestAssignment(member_id=each, assignment=assigned(half))
                    for each, half in halves.items()
                ]
            assert wire.call(sync, 5).error_code == 0
        live.wait(".card .badge", "Stable")
        live.wait(".progress")
        live.wait(".card .scroll:nth-of-type(2) tbody td:nth-child(3)", "orders 0-5", "orders 6-11")
        live.wait(".live-chart .band", "", "")
        rows = live.texts(".card .scroll:nth-of-type(3) tbody tr")
        assert "new member: second" in rows[0]
        assert "stable" in rows[0]
        live.browser.find_element(By.CSS_SELECTOR, ".card button").click()
        live.wait(".progress", "requested by the operator (asked for on the page); waits for first (JoinGroup)")
    asked = live.asked()
    assert asked
    assert all(url.startswith((live.control.url + "/", "data:")) for url in asked)
    assert live.control.token not in "".join(url.partition("#")[0] for url in asked), "it is in no address that is sent"
    assert live.complaints() == []


def assigned(partitions: range) -> bytes:
    topic = kw.ConsumerProtocolAssignmentTopicPartition(topic="orders", partitions=list(partitions))
    return kw.encode_prefixed(kw.ConsumerProtocolAssignment(assigned_partitions=[topic]), 1)


def test_strings_of_clients_are_text(live: Live) -> None:
    with Wire(live.coordinator.address, client_id=HOSTILE) as wire:
        become_stable(wire, HOSTILE)
        live.wait(".card h2 span:first-child", HOSTILE)
        live.wait(".live-chart .who", HOSTILE[:20])
        assert live.js("document.images.length") == 0
    assert live.complaints() == []


def test_themes_names_and_headings(live: Live) -> None:
    with Wire(live.coordinator.address) as wire:
        become_stable(wire, "billing")
        live.wait(".card .badge", "Stable")
        for _ in range(2):
            assert live.js(CHECKS["accessible"]) == []
            count, low = live.js(CHECKS["contrast"])
            assert count > 10
            assert low == []
            live.browser.find_element(By.ID, "theme").click()
    assert live.complaints() == []


def test_the_page_says_when_nothing_answers(live: Live) -> None:
    live.coordinator.stop()
    live.control.stop()
    live.wait("#source", "the coordinator does not answer; asking again")


def test_a_wrong_token_is_reported(live: Live) -> None:
    live.open(f"{live.control.url}/#wrong")
    live.wait("#problem", "The token is wrong: open the address that kcoord serve has printed")
    assert live.texts(".card") == []

"""The live page of the control port in headless Chromium: groups, owners, and a rebalance as it happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import kcoord_wire as kw
from kcoord_wire.control import ControlServer
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.browser import CHECKS, Page
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import VERSIONS, become_stable, commit, join_request
from tests.support.waiting import eventually
from tests.support.wire import Wire

HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'&"
LONG = HOSTILE + "x" * 10_000
TABS = ("groups", "topics", "transactions", "brokers")
MEMBERS, REBALANCES = (f".inside > .listed:nth-last-child({at}) tbody" for at in (2, 1))


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

    def choose(self, tab: str) -> None:
        self.browser.find_element(By.ID, f"tab-{tab}").click()

    def click(self, selector: str) -> None:
        self.browser.execute_script("document.querySelector(arguments[0]).click()", selector)

    def tip_of(self, selector: str) -> str:
        """The tooltip, with the pointer on an element."""
        move = "dispatchEvent(new PointerEvent('pointermove', {bubbles: true}))"
        self.browser.execute_script(f"document.querySelector(arguments[0]).{move}", selector)
        [text] = self.texts("#tip")
        return text


@pytest.fixture(params=[1])
def live(request: pytest.FixtureRequest, browser: Chrome, coordinator: StartCoordinator) -> Iterator[Live]:
    c = coordinator(brokers=request.param)
    browser.set_window_size(1200, 900)
    with ControlServer(c) as control:
        page = Live(browser, c, control)
        page.open(control.page)
        page.wait("#source", f"live from {c.address}")
        yield page
        assert page.complaints(of_network=False) == []
        browser.get("about:blank")


several_brokers = pytest.mark.parametrize("live", [3], indirect=True)


def test_a_rebalance_as_it_happens(live: Live) -> None:
    live.wait("#none", "No groups yet")
    with (
        Wire(live.coordinator.address, client_id="first") as first,
        Wire(live.coordinator.address, client_id="second") as second,
    ):
        heartbeat = become_stable(first, "billing")
        live.wait(".card .badge", "Stable")
        live.wait(".card h2 bdi", "billing")
        live.wait(".card .live-chart .who", "first")
        live.wait(f"{MEMBERS} th", "first")
        live.wait(f"{REBALANCES} th", ":")  # when it began
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
        live.wait(f"{MEMBERS} td:nth-child(4)", "orders 0-5", "orders 6-11")
        live.wait(".live-chart .count", "6", "6")
        live.wait(".live-chart .rebalance", "", "")
        assert "new member: second\ntook " in live.tip_of(".live-chart .rebalance:nth-of-type(4)")
        assert "first\n6 partitions: orders 0-5\n" in live.tip_of(".live-chart .lane[data-tip*=orders]")
        rows = live.texts(f"{REBALANCES} tr")
        assert "new member: second" in rows[0]
        assert "stable" in rows[0]
        live.wait("#said", "billing: Stable")
        live.click(".card .controls button")
        live.wait(".progress", "requested by the operator (asked for on the page); waits for first (JoinGroup)")
        asked = live.asked()
    assert asked
    assert all(url.startswith((live.control.url + "/", "data:")) for url in asked)
    assert live.control.token not in "".join(url.partition("#")[0] for url in asked), "it is in no address that is sent"


def test_lanes_begin_before_the_page_was_opened(live: Live) -> None:
    with Wire(live.coordinator.address, client_id="first") as wire:
        become_stable(wire, "billing")
        live.open(live.control.page)
        live.wait(".card .live-chart .who", "first")
        since = live.coordinator.describe("billing").state_since
        assert live.js(
            "[...cards.get('billing').lanes.values()].map((lane) => lane.parts.map((part) => part.from))"
        ) == [[since]]
        assert live.coordinator.describe("billing").state_since == since


def assigned(partitions: range) -> bytes:
    topic = kw.ConsumerProtocolAssignmentTopicPartition(topic="orders", partitions=list(partitions))
    return kw.encode_prefixed(kw.ConsumerProtocolAssignment(assigned_partitions=[topic]), 1)


def join_new(wire: Wire, group: str, members: Sequence[str]) -> None:
    """Join a group of KIP-848: a connection may have many members."""
    for member in members:
        beat = kw.ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member, rebalance_timeout_ms=30_000, subscribed_topic_names=["orders"]
        )
        beat.topic_partitions = []
        assert wire.call(beat, 1).error_code == 0


def test_a_group_of_the_new_protocol(live: Live) -> None:
    with Wire(live.coordinator.address, client_id="one") as wire:
        join_new(wire, "mail", ["a"])
        live.wait(".card > .quiet", "KIP-848, epoch 2, assignment epoch 2 · uniform · 1 member")
        live.wait(f"{MEMBERS} tr", "one/127.0.0.112orders 0-112")


def test_many_members_are_folded(live: Live) -> None:
    with Wire(live.coordinator.address) as wire:
        join_new(wire, "mail", [f"member-{at}" for at in range(30)])
        live.wait(".inside > .listed:nth-last-child(2) .link", "and 18 more")
        assert len(live.texts(f"{MEMBERS} tr")) == len(live.texts(".live-chart .who")) == 12
        live.click(".inside > .listed:nth-last-child(2) .link")
        assert len(live.texts(f"{MEMBERS} tr")) == len(live.texts(".live-chart .who")) == 30
        live.click(".inside thead th:nth-child(3) button")
        assert live.texts(f"{MEMBERS} td.figure:nth-child(3)") == ["0"] * 29 + ["12"]
        live.click(".inside thead th:nth-child(3) button")
        assert live.texts(f"{MEMBERS} td.figure:nth-child(3)")[0] == "12"
        live.browser.find_element(By.CSS_SELECTOR, ".inside input").send_keys("MEMBER-29")
        assert len(live.texts(f"{MEMBERS} tr")) == len(live.texts(".live-chart .who")) == 1


def test_many_groups_are_folded(live: Live) -> None:
    with Wire(live.coordinator.address, client_id="needle") as wire:
        for at in range(60):
            commit(wire, f"group-{at:02}", 1)
        join_new(wire, "last", ["a"])
        live.wait("#tab-groups", "Groups (61)")
        live.wait("#more", "and 11 more")
        assert live.texts(".inside") == [], "they are closed"
        live.click("#more")
        assert len(live.texts(".card")) == 61
        live.browser.find_element(By.ID, "find-text").send_keys("needle")
        live.wait(".card h2 bdi", "last")
        live.wait("#found", "1 group, ")
        live.browser.find_element(By.CSS_SELECTOR, ".card h2 button").send_keys(Keys.ENTER)
        live.wait(".live-chart .who", "needle")


def test_strings_of_clients_are_text(live: Live) -> None:
    with Wire(live.coordinator.address, client_id=HOSTILE) as wire:
        for group in (HOSTILE, LONG):
            become_stable(wire, group)
        wire.call(kw.InitProducerIdRequest(transactional_id=LONG, transaction_timeout_ms=60_000), 2)
        live.wait(".card h2 bdi", HOSTILE, LONG[:59] + "…")
        live.wait(".live-chart .who", HOSTILE[:20], HOSTILE[:20])
        assert live.tip_of(".card:last-child h2 bdi").startswith(LONG[:1400])
        live.choose("transactions")
        live.wait("#transactions tbody bdi", LONG[:59] + "…", "")
        live.choose("groups")
        live.browser.set_window_size(420, 900)
        assert live.js("document.documentElement.scrollWidth <= innerWidth")
        live.click(".card:last-child .controls button")
        live.wait(".progress", "requested by the operator")
        assert live.js("document.images.length") == 0
    assert live.complaints() == []


def test_themes_names_and_headings(live: Live) -> None:
    with Wire(live.coordinator.address) as wire:
        become_stable(wire, "billing")
        live.wait(".card .badge", "Stable")
        commit(wire, "offsets", 3)
        for scheme in ("dark", "light"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            live.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            eventually(lambda: live.js("document.documentElement.dataset.theme"), until=scheme.__eq__)
            for tab in TABS:
                live.choose(tab)
                live.wait(f"#{tab}", "")
                assert live.js(CHECKS["accessible"]) == []
                count, low = live.js(CHECKS["contrast"])
                assert count > 10
                assert low == []
    assert live.complaints() == []


def test_the_keyboard_moves_between_tabs(live: Live) -> None:
    live.browser.find_element(By.ID, "tab-groups").send_keys(Keys.ARROW_LEFT)
    assert live.js("document.activeElement.id") == "tab-brokers"
    assert live.texts("[role=tabpanel]") == live.texts("#brokers")
    assert live.js("[...document.querySelectorAll('[role=tab]')].filter((tab) => tab.tabIndex === 0).length") == 1


def test_what_stays_the_same_is_not_said_again(live: Live) -> None:
    with Wire(live.coordinator.address) as wire:
        live.browser.execute_script(
            "window.changes = {};"
            "for (const one of document.querySelectorAll('[role=status], [role=alert], [aria-live]'))"
            " new MutationObserver((all) => { changes[one.id] = (changes[one.id] || 0) + all.length; })"
            ".observe(one, {childList: true, subtree: true, characterData: true})"
        )
        join_new(wire, "mail", ["a"])
        live.wait("#said", "mail: Stable")
        join_new(wire, "mail", ["b"])
        live.wait(f"{MEMBERS} tr", "", "")
        assert set(live.js("changes")) == {"said"}
        assert live.js("document.querySelectorAll('.card :is([role=status], [role=alert], [aria-live])').length") == 0


@several_brokers
def test_brokers_are_at_hand(live: Live) -> None:
    with Wire(live.coordinator.address.partition(",")[0]) as wire:
        commit(wire, "billing", 7)
    live.choose("brokers")
    live.wait("#brokers .badge", *["running"] * 3)
    live.browser.find_element(By.CSS_SELECTOR, "#brokers [data-key=p1]").send_keys(Keys.ENTER)
    live.wait("#brokers .badge", "running", "paused", "running")
    assert live.js("document.activeElement.textContent") == "Resume", "the focus stays"
    live.click("#brokers [data-key=p1]")
    live.wait("#brokers .badge", *["running"] * 3)
    live.click("#brokers [data-key=s2]")
    live.wait("#brokers .badge", "running", "running", "stopped")
    live.click("#brokers [data-key=s2]")
    live.wait("#brokers .badge", *["running"] * 3)


@several_brokers
def test_a_group_is_moved(live: Live) -> None:
    node = live.coordinator.coordinator_of("billing")
    with Wire(live.coordinator.addresses[node]) as wire:
        join_new(wire, "billing", ["a"])
        live.wait(".card h2 bdi", "billing")
        assert live.js("document.querySelector('.card select').value") == str(node)
        to = (node + 1) % 3
        live.browser.execute_script(
            "const list = document.querySelector('.card select');"
            "list.value = arguments[0]; list.dispatchEvent(new Event('change'))",
            str(to),
        )
        eventually(lambda: live.coordinator.coordinator_of("billing"), until=to.__eq__)
        eventually(lambda: live.js("document.querySelector('.card select').value"), until=str(to).__eq__)


def test_topics_with_their_lag(live: Live) -> None:
    live.choose("topics")
    live.wait("#topics tbody tr", "orders120")
    with Wire(live.coordinator.address) as wire:
        commit(wire, "billing", 0)
        live.wait("#topics tbody tr:first-child td:nth-child(5)", "billing: lag 0 in 1 partition")
        live.click("#topics tbody button")
        live.wait("#topics .particulars tbody tr", "000", *[""] * 11)
        live.wait("#topics .particulars tbody td:last-child", "billing at 0, lag 0", *[""] * 11)


def test_the_coordinator_goes_and_comes_back(live: Live, coordinator: StartCoordinator) -> None:
    port, control, token = live.coordinator.port, live.control.port, live.control.token
    with Wire(live.coordinator.address) as wire:
        join_new(wire, "mail", ["a"])
        live.wait(".card .badge", "Stable")
    live.coordinator.stop()
    live.control.stop()
    live.wait("#problem", "The coordinator has not answered since ")
    live.wait("#source", "not connected")
    assert live.js("now() === live.lost"), "the time of the charts stands still"
    assert live.js("[...document.querySelectorAll('[data-act]')].every((each) => each.disabled)")
    grey = "getComputedStyle(document.querySelector('.card .badge')).color === getComputedStyle($('source')).color"
    assert live.js(grey)
    low = live.js(CHECKS["contrast"])[1]
    assert [text for text, _ in low if text not in ("Rebalance", "Report")] == []
    again = coordinator(port=port)
    with ControlServer(again, control, token=token), Wire(again.address) as wire:
        join_new(wire, "new", ["b"])
        live.wait("#problem")
        live.wait(".card h2 bdi", "new")
        live.wait("#source", f"live from {again.address}")
        assert not live.js(grey)
        assert live.js("![...document.querySelectorAll('[data-act]')].some((each) => each.disabled)")


@pytest.mark.parametrize("token", ["wrong", "%E0%A4%A", "%E2%9C%93"])
def test_a_wrong_token_and_nothing_else(live: Live, token: str) -> None:
    live.open(f"{live.control.url}/#{token}")
    live.wait("#problem", "The token is wrong: open the address that kcoord serve has printed")
    assert live.texts("main > *") == [*live.texts("#problem"), ""], "and what screen readers hear, which is empty"
    assert live.texts("button") == ["Dark"]


def test_the_report_is_downloaded(live: Live, tmp_path: Path) -> None:
    live.browser.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    with Wire(live.coordinator.address, client_id="slow") as wire:
        wire.call(VERSIONS, 3)
        become_stable(wire, "billing")
    live.click("#report")
    path = tmp_path / "report.html"
    eventually(path.exists)
    live.wait("#report", "Report")
    live.open(path.as_uri())
    live.wait("#group-title", "billing")
    eventually(lambda: live.texts("#rebalances tbody tr"), until=lambda rows: any("new member" in row for row in rows))

"""The page in headless Chromium: from a file, without a network, by mouse, by keyboard, in both themes, on paper."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from kcoord_wire.forensics.model import GroupHistory
from kcoord_wire.report import write_html
from tests.support.browser import CHECKS, Page
from tests.support.histories import HOSTILE, bare, empty, hostile, incident, kip_848, losses, storm, typical
from tests.support.waiting import eventually

NARROWEST = "Math.min(...[...document.querySelectorAll('#rebalances td')].map((cell) => cell.offsetWidth || 1000))"


class Report(Page):
    """One report in the browser."""

    def __init__(self, browser: Chrome, folder: Path) -> None:
        super().__init__(browser)
        self.folder = folder

    def open(self, *histories: GroupHistory, width: int = 1400, dark: bool = False, height: int = 1000) -> None:
        """Write the report, load it from the file, and wait for its charts."""
        path = self.folder / "report.html"
        write_html(histories, losses(), path, title="Consumer groups", source="node-1.pcap")
        self.size(width, height)
        self.media("screen", dark)
        self.load(path.as_uri())
        self.wait("document.documentElement.dataset.ready === 'yes'")
        self.drawn()

    def size(self, width: int, height: int) -> None:
        """The window's size in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def media(self, kind: str, dark: bool) -> None:
        """The medium, and what the system says of its theme."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": [scheme, still]})

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        eventually(lambda: self.js(condition), f"this never became true: {condition}", every=0.02)

    def drawn(self) -> None:
        """Until the charts show the part of the time that is asked of them."""
        self.wait("!page.groups.length || document.getElementById('charts').dataset.drawn === charts.range().join(' ')")

    def one(self, selector: str) -> WebElement:
        """The element of a selector."""
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """The elements of a selector."""
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """What is written in the elements of a selector."""
        found: list[str] = self.js(
            "[...document.querySelectorAll(arguments[0])].map((element) => element.textContent)", selector
        )
        return found

    def range(self) -> tuple[float, float]:
        """The part of the time that the charts show, once they do."""
        self.drawn()
        first, last = self.js("charts.range()")
        return first, last

    def axis(self, chart: str) -> list[str]:
        """The labels of a chart's time axis."""
        self.drawn()
        return [text for text in self.texts(f"#{chart} .role-axis-label text") if ":" in text]

    def numbers(self) -> list[int]:
        """The rebalances in the table, in its order."""
        found: list[int] = self.js(
            "[...document.querySelectorAll('#rebalances tr[data-n]')].map((row) => +row.dataset.n)"
        )
        return found


@pytest.fixture
def page(browser: Chrome, tmp_path: Path) -> Iterator[Report]:
    """A page that must not complain."""
    result = Report(browser, tmp_path)
    yield result
    assert result.complaints() == []


def test_asks_for_its_own_file_and_for_nothing_else(page: Report) -> None:
    page.open(typical(), kip_848(), incident())
    assert set(page.asked()) == {(page.folder / "report.html").as_uri()}
    assert page.one("#group-title").text == "billing"
    assert page.one("#opening").text.startswith("billing-1 was put out because it did not poll")
    assert page.one("#summary").text.startswith("7 rebalances in 3 min 20 s: 4 new member")
    assert "5 pieces at 3 places, 4,933 bytes" in page.one("#lost").text
    assert page.texts("#blind li") == ["Heartbeats before the capture began are not in it."]
    assert page.one("#wrong-title").text == "What is wrong"
    assert len(page.all("#findings .finding")) == 2
    assert page.one("#others-title").text == "What was found besides"
    assert len(page.all("#others .finding")) == 1
    assert not page.one("#plain").is_displayed()


def test_findings_that_are_only_information_are_shown(page: Report) -> None:
    history = typical()
    page.open(replace(history, findings=[each for each in history.findings if each.severity == "info"]))
    assert page.one("#wrong-title").text == "What was found"
    assert len(page.all("#findings .finding")) == 1
    assert not page.one("#besides").is_displayed()


def test_the_policy_stops_what_would_talk(page: Report) -> None:
    page.open(typical())
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        outcome = page.browser.execute_async_script(
            "const done = arguments[1]; const image = new Image(); image.src = arguments[0];"
            "fetch(arguments[0], {mode: 'no-cors'}).then(() => done('sent'), () => done('refused'));",
            address,
        )
        assert outcome == "refused"
        page.browser.execute_script(
            "const box = document.createElement('div'); box.innerHTML = '<b onclick=\"window.hacked=1\">x</b>';"
            "document.body.append(box); box.firstChild.click(); box.remove();"
        )
        assert page.js("window.hacked === undefined")
        server.settimeout(0.3)
        with pytest.raises(TimeoutError):
            server.accept()
    assert all("Content Security Policy" in text for text in page.complaints())


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(page: Report, name: str) -> None:
    page.open(hostile(name), typical())
    page.browser.execute_script("choose(page.groups.findIndex((group) => group.id !== 'billing')); table.open(4)")
    page.drawn()
    assert page.js("window.hacked === undefined")
    assert page.js("document.querySelectorAll('img, b img, iframe, main script').length") == 0
    assert page.js("document.documentElement.scrollWidth <= window.innerWidth")
    assert len(page.all(".particulars")) == 1


def test_the_table_is_filtered_by_cause_member_and_text(page: Report) -> None:
    page.open(typical())
    assert page.numbers() == [1, 2, 3, 4, 5, 6, 7]
    bands = "document.querySelectorAll('#causes .layer_0_marks path').length"
    page.wait(f"{bands} === 7")
    Select(page.one("#filter-cause")).select_by_value("new member")
    assert page.numbers() == [1, 2, 3, 5]
    assert page.one("#found").text == "4 of 7 rebalances; the charts show these"
    page.wait(f"{bands} === 4")
    Select(page.one("#filter-member")).select_by_value("billing-2")
    assert page.numbers() == [3, 5]
    page.one("#filter-text").send_keys("10.0.0.4 #5")
    page.wait("document.querySelectorAll('#rebalances tr[data-n]').length === 1")
    assert page.numbers() == [5]
    page.one("#filter-text").send_keys("no such thing")
    page.wait("document.querySelectorAll('#rebalances tr[data-n]').length === 0")
    assert "No rebalance matches" in page.one("#rebalances tbody").text
    page.one("#filter button").click()
    page.wait(f"{bands} === 7")
    assert page.numbers() == [1, 2, 3, 4, 5, 6, 7]


def test_the_table_is_sorted_by_its_heads(page: Report) -> None:
    page.open(typical())
    page.one('th[data-key="took"] button').click()
    assert page.numbers()[:3] == [5, 2, 7]
    assert page.one('th[data-key="took"]').get_attribute("aria-sort") == "descending"
    page.one('th[data-key="took"] button').click()
    assert page.numbers()[:1] == [6]
    page.one('th[data-key="cause"] button').send_keys(Keys.ENTER)
    assert page.numbers()[0] == 4
    assert len(page.all("#rebalances [aria-sort]")) == 1


def test_zooms_and_moves_by_keyboard_and_all_charts_follow(page: Report) -> None:
    page.open(typical())
    whole, labels = page.range(), page.axis("causes")
    assert labels == page.axis("commits")
    charts = page.one("#charts")
    charts.send_keys("+")
    near = page.range()
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2)
    assert page.axis("causes") == page.axis("commits") != labels
    assert page.js("['causes', 'lanes', 'pauses', 'commits'].every((id) => document.querySelector(`#${id} svg`))")
    charts.send_keys(Keys.ARROW_RIGHT)
    later = page.range()
    assert later[0] > near[0]
    assert later[1] - later[0] == pytest.approx(near[1] - near[0])
    charts.send_keys(Keys.ARROW_LEFT)
    assert page.range() == pytest.approx(near)
    charts.send_keys("-")
    assert page.range() == pytest.approx(whole)
    charts.send_keys("+", "+", "0")
    assert page.range() == pytest.approx(whole)
    charts.send_keys("n", "n")
    second = page.range()
    assert second[0] < 9_900 < 13_000 < second[1]
    assert second[1] - second[0] < 10_000
    charts.send_keys("p")
    assert page.range()[0] < 0


def test_zooms_and_moves_by_mouse(page: Report) -> None:
    page.open(typical())
    whole, labels = page.range(), page.axis("causes")
    lanes = page.one("#lanes")
    page.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", lanes)
    ActionChains(page.browser).move_to_element(lanes).click_and_hold().move_by_offset(200, 0).release().perform()
    part = page.range()
    assert whole[0] < part[0] < part[1] < whole[1]
    assert page.axis("causes") == page.axis("commits") != labels
    ActionChains(page.browser).double_click(page.one("#pauses")).perform()
    assert page.range() == pytest.approx(whole)
    x, y = page.js("((box) => [box.left + box.width / 2, box.top + 15])(arguments[0].getBoundingClientRect())", lanes)
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -200}
    page.browser.execute_cdp_cmd("Input.dispatchMouseEvent", {**wheel, "modifiers": 2})  # Ctrl
    page.wait("charts.range()[1] - charts.range()[0] < page.groups[0].span * 0.9")
    near = page.range()
    sideways = {**wheel, "modifiers": 8, "deltaX": 120, "deltaY": 0}  # Shift
    page.browser.execute_cdp_cmd("Input.dispatchMouseEvent", sideways)
    page.wait(f"charts.range()[0] > {near[0]}")
    page.browser.execute_script("document.querySelector('[data-do=all]').click()")
    assert page.range() == pytest.approx(whole)
    scrolled = page.js("scrollY")
    page.browser.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
    page.wait(f"scrollY !== {scrolled}")
    assert page.range() == pytest.approx(whole), "a wheel alone scrolls the page"


def test_table_finding_and_chart_open_a_rebalance(page: Report) -> None:
    page.open(typical())
    page.one('tr[data-n="5"] button').send_keys(Keys.ENTER)
    particulars = page.one("#particulars-5")
    for words in ("max.poll" not in particulars.text, "billing-2 (10.0.0.5): 6.5 s after", "joining 7.3 s", "Evidence"):
        assert words is True or words in particulars.text
    assert page.one('tr[data-n="5"] button').get_attribute("aria-expanded") == "true"
    assert page.js("document.activeElement === document.querySelector('tr[data-n=\"5\"] button')")
    particulars.find_element(By.CSS_SELECTOR, "button").click()
    first, last = page.range()
    assert first < 64_200 < 72_300 < last
    page.one('tr[data-n="5"] button').send_keys(Keys.ENTER)
    assert page.all(".particulars") == []
    page.one('#findings button[aria-label="Open rebalance 4"]').click()
    assert "removed" in page.one("#particulars-4").text.lower()
    page.one('[data-do="all"]').click()
    page.drawn()
    band = page.all("#causes .layer_1_marks path")[4]
    page.browser.execute_script("document.getElementById('time').scrollIntoView({behavior: 'instant'})")
    ActionChains(page.browser).move_to_element(band).perform()
    page.wait("!document.getElementById('tip').hidden")
    assert page.one("#tip").text.startswith("#5 new member\nbilling-1 (10.0.0.4)\ntook 8.1 s")
    ActionChains(page.browser).click(band).perform()
    assert page.one("#particulars-5").is_displayed()
    page.one("#worst").click()
    assert page.one("#particulars-5").is_displayed()


def test_changes_the_group_and_the_theme(page: Report) -> None:
    page.open(typical(), incident(), kip_848(), bare(), empty())
    groups = ["billing", "incident-84", "next-gen", "bare", "idle"]
    assert page.texts("#all-table tbody th") == groups, "the worst first, of one severity the costliest"
    Select(page.one("#groups-select")).select_by_index(groups.index("incident-84"))
    page.drawn()
    assert page.one("#group-title").text == "incident-84"
    assert len(page.numbers()) == 40
    assert len(page.all("#members tbody tr")) == 84
    page.all("#all-table tbody button")[groups.index("next-gen")].click()
    page.drawn()
    assert page.one("#group-title").text == "next-gen"
    assert "from the records of __consumer_offsets" in page.one("#period").text
    for name, rows in (("bare", 1), ("idle", 0)):
        Select(page.one("#groups-select")).select_by_index(groups.index(name))
        page.drawn()
        assert page.one("#group-title").text == name
        assert len(page.numbers()) == rows
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(255, 255, 255)", "rgb(18, 21, 26)"
    assert page.js(ground) == light
    page.one("#theme").click()
    page.wait(f"{ground} === '{dark}'")
    assert page.one("#theme").get_attribute("aria-pressed") == "true"
    page.one("#theme").click()
    page.wait(f"{ground} === '{light}'")
    for is_dark, colour in ((True, dark), (False, light)):
        page.media("screen", dark=is_dark)
        page.wait(f"{ground} === '{colour}'")


@pytest.mark.parametrize("fault", ["switched off", "script stopped"])
def test_without_scripts_the_tables_are_there(page: Report, fault: str) -> None:
    """They do not run, or the main one does not get to its end."""
    page.open(typical(), kip_848(), dark=True)
    if fault == "switched off":
        page.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    else:
        path = page.folder / "report.html"
        path.write_text(path.read_text("utf-8").replace('"use strict";\n', '"use strict";\n\n'), "utf-8")
    try:
        page.load((page.folder / "report.html").as_uri())
        assert page.one("#plain").is_displayed()
        assert not page.one("#group").is_displayed()
        assert not page.one("#theme").is_displayed()
        assert page.one("#plain .finding").text.startswith("▲ critical billing-1 was put out")
        assert [row.text for row in page.all("#all-table tbody th")] == ["billing", "next-gen"]
        assert page.one("body").value_of_css_property("background-color") == "rgba(18, 21, 26, 1)"
    finally:
        page.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    if fault != "switched off":  # whose hash the policy does not know any more
        assert all("Content Security Policy" in text for text in page.complaints())


def test_a_report_of_nothing_says_so(page: Report) -> None:
    page.open()
    assert page.one("#group").text == "No consumer group was found."


# ---- how it looks


@pytest.mark.parametrize("width", [1400, 800, 400])
def test_no_texts_overlap(page: Report, width: int) -> None:
    page.open(storm(rebalances=150), typical(), incident(), width=width)
    for group in range(3):
        page.browser.execute_script("choose(arguments[0])", group)
        for keys in ("", "+++", "nn"):
            page.one("#charts").send_keys("0", *keys)
            page.drawn()
            count, found = page.js(CHECKS["overlaps"])
            assert found == []
            assert count > 30
        assert page.js(NARROWEST) > 40
    assert page.js("document.documentElement.scrollWidth <= window.innerWidth")


def picture(page: Report, of: WebElement) -> tuple[int, float, int, int, list[int]]:
    """Colours, the part of the most frequent one, different and all strips of 50 pixels, and their sums."""
    colours, most, different, strips, sums = page.browser.execute_async_script(
        CHECKS["pixels"], of.screenshot_as_base64
    )
    return colours, most, different, strips, sums


def test_pictures_are_not_empty_and_themes_differ(page: Report) -> None:
    sums = []
    for dark in (False, True):
        page.open(typical(), storm(rebalances=150), dark=dark)
        for selector in ("#time", "#group"):
            colours, most, different, strips, rows = picture(page, page.one(selector))
            assert colours > 60
            assert most < 0.95
            assert different > strips * 0.6
            sums.append(rows)
    assert not set(sums[0]) & set(sums[2])
    assert not set(sums[1]) & set(sums[3])


def test_a_large_group_stays_usable(page: Report) -> None:
    page.open(storm())
    lanes = page.one("#lanes")
    assert page.one("#fold").text == "Show 12 quiet clients as well"
    page.one("#fold").click()
    page.drawn()
    page.wait("document.getElementById('lanes').scrollHeight >= 4000")
    high, whole = page.js("[arguments[0].clientHeight, arguments[0].scrollHeight]", lanes)
    assert high <= 450 < 4000 <= whole
    assert page.js("document.querySelectorAll('#charts svg *').length") < 20_000
    assert len(page.numbers()) == 1000
    assert "clickstream-101" in page.texts("#lanes .role-axis-label text")[0], "the client with most trouble"
    row = "[...document.querySelectorAll('#lanes .layer_2_marks path')].some((bar) => bar.getBBox().y > 3900)"
    assert not page.js(row)
    page.browser.execute_script("arguments[0].scrollTop = 1e6", lanes)
    page.wait(row)
    before = page.js("arguments[0].scrollTop", lanes)
    page.one("#charts").send_keys(Keys.ARROW_UP)
    page.wait(f"document.getElementById('lanes').scrollTop < {before}")
    page.one("#filter-text").send_keys("clickstream-26")
    page.wait("document.querySelectorAll('#rebalances tr[data-n]').length < 100")
    assert page.numbers()
    assert "intervals of ownership" in page.one("#cut").text


def test_on_paper_everything_is_there_and_it_is_light(page: Report) -> None:
    page.open(incident(), dark=True)
    page.media("print", dark=True)
    assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.one(".toolbar").is_displayed()
    page.browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert page.js("document.getElementById('lanes').clientHeight >= 84 * 20 * 0.9")
    page.browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    page.size(720, 1000)
    assert page.js(NARROWEST) > 40
    assert page.js("document.documentElement.scrollWidth <= window.innerWidth")
    page.media("", dark=True)
    page.browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert page.js("document.querySelectorAll('#lanes .layer_1_marks line').length") == 84
    page.browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    paper = base64.b64decode(page.browser.print_page())
    assert paper.startswith(b"%PDF")
    assert len(paper) > 30_000


# ---- for everybody


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_names_captions_heads_and_contrast(page: Report, dark: bool) -> None:
    page.open(typical(), incident(), kip_848(), dark=dark)
    page.browser.execute_script(
        "table.open(5); document.querySelectorAll('details').forEach((box) => { box.open = true; })"
    )
    assert page.js(CHECKS["accessible"]) == []
    count, low = page.js(CHECKS["contrast"])
    assert count > 300
    assert low == []
    for chart in ("causes", "lanes", "lag", "pauses", "commits"):
        assert len(page.one(f"#{chart}").get_attribute("aria-label") or "") > 30


def test_everything_is_reached_by_tab_and_the_focus_is_seen(page: Report) -> None:
    page.open(typical(), bare())
    reached: list[str] = []
    page.one("body").send_keys(Keys.TAB)
    while "open" not in reached and len(reached) < 80:
        reached.append(page.js("document.activeElement.id || document.activeElement.className"))
        kind, width = page.js(
            "((style) => [style.outlineStyle, style.outlineWidth])(getComputedStyle(document.activeElement))"
        )
        assert kind != "none", reached[-1]
        assert float(width.removesuffix("px")) >= 2
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
    order = ["skip", "groups-select", "theme", "worst", "charts", "filter-cause", "filter-text", "open"]
    assert [place for place in reached if place in order] == order

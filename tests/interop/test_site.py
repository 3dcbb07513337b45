"""`make docs`: a site is built without a warning, its links hold, and a browser searches it without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from tests.support.browser import Page
from tests.support.processes import run_tool
from tests.support.waiting import eventually

NARROW = 400  # pixels


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it as a user does; warnings and links that lead nowhere fail the target."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    run_tool(["make", "docs", f"SITE={folder}"], attempts=1)
    return folder


@pytest.fixture
def page(browser: Chrome) -> Page:
    browser.set_window_size(1200, 900)
    return Page(browser)


def test_the_search_finds_the_page_of_a_field(site: Path, page: Page) -> None:
    page.load(f"{(site / 'search.html').as_uri()}?q=rebalance_timeout_ms")
    found = "[...document.querySelectorAll('#search-results li a')].map((link) => link.getAttribute('href'))"
    eventually(
        lambda: page.js(found), "no result", until=lambda links: any("/JoinGroupRequest.html" in x for x in links)
    )
    assert all(address.startswith(("file:", "data:")) for address in page.asked())
    assert page.complaints() == []


def test_a_page_of_a_message_fits_every_window(site: Path, page: Page) -> None:
    page.load((site / "messages" / "JoinGroupRequest.html").as_uri())
    assert page.js("document.querySelector('h1').innerText").startswith("JoinGroupRequest")
    assert "rebalance_timeout_ms" in page.js("document.querySelector('table.docutils:last-of-type').innerText")
    for width in (1200, NARROW):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        assert page.js("document.documentElement.scrollWidth <= window.innerWidth"), width
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert all(address.startswith(("file:", "data:")) for address in page.asked())
    assert page.complaints() == []

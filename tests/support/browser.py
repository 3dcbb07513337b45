"""Headless Chromium for the tests of pages (Debian: chromium, chromium-driver)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

CHECKS: Final = {
    path.stem: path.read_text("utf-8") for path in (Path(__file__).parents[1] / "interop" / "browser").glob("*.js")
}
"""Expressions that look at a page, by name."""
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--force-color-profile=srgb",
)


class Page:
    """A page in the browser."""

    def __init__(self, browser: Chrome) -> None:
        self.browser = browser

    def js(self, script: str, *args: Any) -> Any:
        """The value of an expression of the page."""
        return self.browser.execute_script(f"return (\n{script}\n)", *args)

    def load(self, address: str) -> None:
        """Open an address, and forget what was logged before."""
        for kind in ("browser", "performance"):
            self.browser.get_log(kind)
        self.browser.get(address)

    def asked(self) -> list[str]:
        """The addresses that the page has asked for."""
        events = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def complaints(self, *, of_network: bool = True) -> list[str]:
        """What the browser has written into its console.

        :param of_network: also of requests that were not answered, or with a status of 400 and more
        """
        entries = self.browser.get_log("browser")
        return [entry["message"] for entry in entries if of_network or entry["source"] != "network"]


def start_browser(folder: Path) -> Chrome:
    """Start it with a new profile in `folder`.

    On a busy machine the first start may take longer than its driver waits; the second finds the files in memory.
    """
    try:
        return _start(folder / "first")
    except WebDriverException:
        return _start(folder / "second")


def _start(profile: Path) -> Chrome:
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=Service("/usr/bin/chromedriver"))

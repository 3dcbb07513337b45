"""Headless Chromium for the tests of pages (Debian: chromium, chromium-driver)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

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

"""The live page while many members send heartbeats: what it costs in processor time, and when it has drawn.

The server is `kcoord serve` in a process of its own, the members are those of the scale benchmark, the browser is
headless Chromium, which draws without a graphics card. Three groups are open, the others closed, as on a screen.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from selenium.webdriver import Chrome

from tests.support.browser import start_browser
from tests.support.processes import Process
from tests.support.waiting import eventually

from ..runner import Bench, Made, conditions, results_page, section_text, table
from ..scale.servers import STOP_SECONDS, cpu_seconds
from ..scale.swarm import Swarm
from ..spark.measure import processes

RESULTS: Final = Path(__file__).with_name("results")
PERIOD: Final = 3.0  # seconds between two heartbeats of a member, as clients have it
OPEN: Final = 3
MOST_CPU: Final = 15.0  # percent of a core
MOST_PAINT: Final = 1_000.0  # ms
_SETTLE: Final = 3.0  # seconds until a browser that has just started is at rest
_PARTS: Final = ("server", "page", "browser")


def browser_seconds(driver: int) -> Mapping[str, float]:
    """Return the processor time so far of the processes that draw pages, and of the whole browser.

    :param driver: the process that has started the browser
    """
    seconds = {"page": 0.0, "browser": 0.0}
    for pid, _, fields in processes(driver):
        used = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        with suppress(OSError):  # it has ended
            is_drawing = b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()
            seconds["page"] += used * is_drawing
            seconds["browser"] += used * (pid != driver)
    return seconds


class _Screen:
    """The page in a browser, beside the server."""

    def __init__(self, browser: Chrome, server: int) -> None:
        self._browser = browser
        self._server = server
        self._driver: int = browser.service.process.pid

    def js(self, script: str) -> Any:
        return self._browser.execute_script(f"return ({script})")

    def open(self, address: str) -> Made:
        """Load the page; when it had drawn first, and when it showed the groups, in ms since it was asked for."""
        self._browser.get(address)
        shown = eventually(lambda: self.js("document.documentElement.dataset.shown"))
        painted = eventually(lambda: self.js("performance.getEntriesByName('first-contentful-paint')[0]?.startTime"))
        return {"first_paint_ms": painted, "groups_ms": float(shown)}

    def seconds(self) -> dict[str, float]:
        return {"server": cpu_seconds(self._server), **browser_seconds(self._driver)}


def _percent(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    return {part: 100 * (after[part] - before[part]) / seconds for part in _PARTS}


def measure(options: argparse.Namespace) -> Made:
    groups, size, seconds = (3, 2, 0.5) if options.quick else (options.groups, options.size, options.seconds)
    command = [sys.executable, "-m", "kcoord_wire", "serve", "--topics", f"orders:{size}", "--port", "0"]
    command += ["--control", "0", "--config", "group.initial.rebalance.delay.ms=0"]
    ready = r"serves on (\S+:\d+), .*control at (\S+)"
    with tempfile.TemporaryDirectory() as folder, Process(command, ready=ready, log=Path(folder, "log")) as process:
        names = [f"group-{number:03}" for number in range(groups)]
        swarm = Swarm(process.ready[1], names, size, timers=False, settle=lambda: time.sleep(0.3))
        swarm.connect()
        swarm.form()
        browser = start_browser(Path(folder))
        try:
            screen = _Screen(browser, process.pid)
            time.sleep(0 if options.quick else _SETTLE)

            def steady() -> dict[str, float]:
                before = screen.seconds()
                began = time.monotonic()
                swarm.beat(seconds, min(PERIOD, seconds))
                return _percent(before, screen.seconds(), time.monotonic() - began)

            alone = steady()
            opened = screen.open(process.ready[2])
            screen.js(f"[...cards.values()].slice(0, {OPEN}).forEach((card) => card.isOpen || card.open(true))")
            time.sleep(0 if options.quick else _SETTLE)
            watched = steady()
            before = screen.seconds()
            swarm.leave_one()
            swarm.join_one()
            eventually(lambda: screen.js("[...cards.values()].every((card) => card.group.is_settled)"))
            moved = {part: after - before[part] for part, after in screen.seconds().items()}
        finally:
            browser.quit()
            swarm.close()
        process.end(seconds=STOP_SECONDS)
    plan = {"groups": groups, "members": groups * size, "seconds": seconds}
    return {"plan": plan, **opened, "alone_percent": alone, "watched_percent": watched, "rebalances_seconds": moved}


def _added(made: Made) -> float:
    """What the page costs in percent of a core: its process, and what the server has more with it."""
    watched, alone = made["watched_percent"], made["alone_percent"]
    return float(watched["page"] + watched["server"] - alone["server"])


def _targets(made: Made) -> list[tuple[str, bool, str]]:
    added, paint = _added(made), made["first_paint_ms"]
    return [
        (f"the page and the server for it: at most {MOST_CPU:.0f} % of a core", added <= MOST_CPU, f"{added:.1f} %"),
        (f"the first paint within {MOST_PAINT:.0f} ms", paint <= MOST_PAINT, f"{paint:.0f} ms"),
    ]


def _lines(made: Made) -> Iterator[str]:
    plan, alone, watched = made["plan"], made["alone_percent"], made["watched_percent"]
    yield f"{plan['members']:,} members in {plan['groups']:,} groups, each with a heartbeat every {PERIOD:.0f} s."
    yield f"First paint after {made['first_paint_ms']:.0f} ms, all groups after {made['groups_ms']:.0f} ms."
    yield ""
    titles = {"server": "`kcoord serve`", "page": "the page's process", "browser": "all of Chromium"}
    rows = (
        [titles[part], f"{alone[part]:.1f} %", f"{watched[part]:.1f} %", f"{made['rebalances_seconds'][part]:.2f} s"]
        for part in _PARTS
    )
    yield from table(["processor time", "without the page", "with it", "all groups rebalance twice"], rows)


def markdown(made: Made) -> str:
    notes = f"{conditions(made)}. In percent of a core, over {made['plan']['seconds']:.0f} s."
    return results_page("The live page with many members", notes, ["", *_lines(made)], _targets(made))


def summary(made: Made) -> str:
    return section_text([*_lines(made), "", f"{conditions(made)}."], _targets(made), RESULTS)


BENCH = Bench(
    about="the live page of `kcoord serve --control` while 2,000 members send heartbeats.",
    results=RESULTS,
    measure=measure,
    markdown=markdown,
    options={
        "groups": {"type": int, "default": 200},
        "size": {"type": int, "default": 10, "help": "members of a group"},
        "seconds": {"type": float, "default": 20.0, "help": "of heartbeats, without the page and with it"},
    },
    quick=True,
    title="The live page",
    command="python -m tests.bench screen",
    summary=summary,
)

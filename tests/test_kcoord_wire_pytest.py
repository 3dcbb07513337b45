"""The plugin for pytest, in runs of pytest of its own: fixtures, the marker, reports of failures, and its price."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TESTS = """
import asyncio
import unittest

import pytest

from kcoord_wire.coordinator import Coordinator, Fault, GroupConfig
from tests.support.group_client import become_stable, commit, join_request
from tests.support.wire import Wire

pytestmark = pytest.mark.kcoord(topics={"orders": 12}, config={"group.max.size": 1})


def test_the_module_has_a_marker(kcoord_coordinator):
    with Wire(kcoord_coordinator.address) as wire:
        become_stable(wire, "billing")
        assert kcoord_coordinator.wait_until_stable("billing", members=1).generation_id == 1
        refused = wire.call(join_request("billing"), 9)
        assert refused.error_code == 81, "the group is full, by the marker"


@pytest.mark.kcoord(config={"group.initial.rebalance.delay.ms": 1})
class TestClass:
    def test_a_class_has_one_too(self, kcoord_coordinator):
        assert kcoord_coordinator._machine.config.initial_rebalance_delay_ms == 1
        assert kcoord_coordinator._machine.config.max_size > 1
        assert kcoord_coordinator._topics.partitions("orders") == 12

    @pytest.mark.kcoord(topics={"payments": 3}, config=GroupConfig())
    def test_the_closest_marker_wins(self, kcoord_coordinator):
        assert kcoord_coordinator._machine.config == GroupConfig()
        assert kcoord_coordinator._topics.partitions("payments") == 3
        assert kcoord_coordinator._topics.partitions("orders") is None


def test_several(kcoord_coordinators):
    first, second = kcoord_coordinators(), kcoord_coordinators(topics={"payments": 1})
    assert first.address != second.address
    assert second._topics.partitions("orders") is None


def test_in_an_event_loop(kcoord_coordinator):
    async def main():
        with Wire(kcoord_coordinator.address) as wire:
            become_stable(wire, "billing")
            await asyncio.to_thread(kcoord_coordinator.wait_until_stable, "billing")
    asyncio.run(main())


@pytest.mark.parametrize("number", range(4))
def test_the_session_has_one(kcoord_session_coordinator, number):
    with Wire(kcoord_session_coordinator.address) as wire:
        assert commit(wire, f"group-{number}", number) == 0
    assert kcoord_session_coordinator._topics.partitions("orders") == 5


class OfUnittest(unittest.TestCase):
    def test_it_needs_no_plugin(self):
        coordinator = self.enterContext(Coordinator({"orders": 1}))
        self.assertEqual(coordinator.groups(), [])
"""
CONFTEST = """
import pytest


@pytest.fixture(scope="session")
def kcoord_session_options():
    return {"topics": {"orders": 5}}
"""

FAILING = """
import pytest

from kcoord_wire.coordinator import Coordinator, Fault
from tests.support.group_client import become_stable
from tests.support.wire import Wire


@pytest.fixture
def mine():
    with Coordinator(topics={"orders": 12}) as coordinator:
        yield coordinator


@pytest.mark.kcoord(topics={"orders": 12})
def test_it_fails(kcoord_coordinator, mine):
    with Wire(kcoord_coordinator.address) as wire:
        beat = become_stable(wire, "billing")
        with kcoord_coordinator.faults(Fault("error", api="Heartbeat", error="NOT_COORDINATOR")):
            wire.call(beat, 4)
            assert not kcoord_coordinator.groups()


@pytest.fixture
def waiting(kcoord_coordinator):
    kcoord_coordinator.wait_until_stable("payments", timeout=0.01)


def test_not_set_up(waiting):
    pass


def test_after_a_stop(kcoord_coordinator):
    kcoord_coordinator.stop()
    raise AssertionError


def test_without_any():
    raise AssertionError


@pytest.mark.kcoord({"orders": 12})
def test_wrong_marker(kcoord_coordinator):
    pass


@pytest.mark.kcoord(topcs={"orders": 12})
def test_wrong_option(kcoord_coordinator):
    pass


@pytest.mark.kcoord(config={"group.max.sizes": 2})
def test_wrong_config(kcoord_coordinator):
    pass
"""

WAITING_IN_VAIN = """
from kcoord_wire.coordinator import Fault, GroupConfig

SOON = 0.01


def test_stable(kcoord_coordinator):
    kcoord_coordinator.wait_until_stable("billing", timeout=SOON)


def test_stable_while_it_polls(kcoord_coordinator):
    kcoord_coordinator.wait_until_stable("billing", timeout=SOON, poll=lambda: None)


def test_committed(kcoord_coordinator):
    kcoord_coordinator.wait_for_commit("billing", "orders", 0, 1, timeout=SOON)


def test_any_condition(kcoord_coordinator):
    kcoord_coordinator.wait_until("billing", lambda group: False, timeout=SOON)


def test_faults(kcoord_coordinator):
    with kcoord_coordinator.faults(Fault("drop", api="Heartbeat")) as faults:
        faults.wait(timeout=SOON)


def test_no_such_option(kcoord_coordinators):
    kcoord_coordinators(topcs={"orders": 12})


def test_no_such_setting(kcoord_coordinators):
    kcoord_coordinators(config={"group.max.sizes": 1})


def test_no_such_action():
    Fault("dorp")


def test_a_setting_out_of_range():
    GroupConfig(max_size=0)


def test_no_record(kcoord_coordinators):
    kcoord_coordinators(topics={"orders": 1}).wait_for_records("orders", timeout=SOON)


def test_no_transaction(kcoord_coordinator):
    kcoord_coordinator.wait_for_transaction("pay-1", "Ongoing", timeout=SOON)


def test_an_error_of_its_own(kcoord_coordinator):
    def poll():
        raise LookupError("found by its frames")

    kcoord_coordinator.wait_until_stable("billing", poll=poll)
"""


def run_pytest(where: Path, *arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (where / f"{name}.py").write_text(text)
    (where / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    plugins = ("-p", "kcoord_wire_pytest", "-p", "xdist", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--rootdir", str(where), *arguments, str(where)],
        cwd=where,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_fixtures_and_markers(tmp_path: Path, workers: str) -> None:
    done = run_pytest(tmp_path, workers, "-q", conftest=CONFTEST, test_inner=TESTS)
    assert "10 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_examples_of_its_page_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")
    examples = "\n".join(re.findall(r"```python\n(.*?)```", page, re.S))
    tests = examples.count("\ndef test_")
    assert tests > 1
    done = run_pytest(tmp_path, "-q", test_examples=examples)
    assert f"{tests} passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_report_of_a_failure_has_the_rebalances(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "-q", test_inner=FAILING)
    assert "3 failed, 4 errors" in done.stdout, done.stdout + done.stderr
    assert "\nthe marker kcoord: a coordinator has no option 'topcs'; did you mean topics?\n" in done.stdout
    assert "\nthe marker kcoord: group.max.sizes: unknown; did you mean group.max.size?\n" in done.stdout
    section = "groups and rebalances of kcoord_wire"
    [errors] = re.findall("= ERRORS =.*= FAILURES =", done.stdout, re.S)
    assert errors.count(section) == 1, "a fixture waited in vain"
    first, second, third = done.stdout.partition("= FAILURES =")[2].split("____ test_")[1:4]
    assert (first.count(section), second.count(section), third.count(section)) == (1, 1, 0)
    assert "group billing: Stable for " in first
    assert "group billing: stable at generation 1" in first
    assert "fault: error error=NOT_COORDINATOR: request Heartbeat v4 of wire, billing" in first
    assert first.count("127.0.0.1:") >= 2, "a coordinator of the tests' own fixture is reported, too"
    assert "no groups, no rebalances" in first
    assert "the coordinator is not running" in second
    assert "the marker kcoord takes options by name only" in done.stdout


@pytest.mark.slow
def test_a_traceback_ends_at_who_waits(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--tb=short", test_inner=WAITING_IN_VAIN)
    assert "12 failed" in done.stdout, done.stdout + done.stderr
    texts = re.split(r"^_+ (test_\w+) _+$", done.stdout.partition("= FAILURES =")[2], flags=re.M)
    frames = {
        name: re.findall(r"^(\S+\.py):\d+: in ", text, re.M)
        for name, text in zip(texts[1::2], texts[2::2], strict=True)
    }
    of_polling = frames.pop("test_an_error_of_its_own")
    assert len(frames) == 11
    assert {name: found for name, found in frames.items() if found != ["test_inner.py"]} == {}
    assert (of_polling[0], of_polling[-1]) == ("test_inner.py", "test_inner.py")
    assert len(of_polling) > 2, "where it was called is part of it"


def test_a_run_without_it_does_not_import_the_package() -> None:
    program = "import sys, kcoord_wire_pytest; print(sorted(name for name in sys.modules if name.startswith('kcoord')))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['kcoord_wire_pytest']\n"

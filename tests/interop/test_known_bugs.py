"""A known bug in the library that has it, and in the next release: librdkafka#4783 with the wheels of both.

Eleven real consumers join our coordinator through a recorder, and the recording is analyzed. In librdkafka 2.6.0 the
leader's assignor does not end; in 2.6.1 it does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.forensics import GroupHistory, analyze
from kcoord_wire.recorder.proxy import Recorder

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = ROOT / "tests" / "support" / "clients" / "unequal_group.py"
TOPICS = {"orders": 10, "invoices": 3, "payments": 3, "refunds": 3}


def install(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--target", str(folder), f"confluent-kafka=={version}"], check=True, timeout=300)
    return folder


def recorded(version: str, folder: Path, seconds: int) -> GroupHistory:
    """What the group of these consumers shows."""
    library = install(version, folder / "library")
    config = GroupConfig(initial_rebalance_delay_ms=3_000)
    with (
        Coordinator(TOPICS, config=config) as broker,
        Recorder(broker.address, folder=folder / "recording") as recorder,
    ):
        members = subprocess.run(
            [sys.executable, str(MEMBERS), recorder.address, "group", str(seconds)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(library), os.environ.get("PYTHONPATH", "")])},
            check=True,
            capture_output=True,
            text=True,
            timeout=seconds + 60,
        )
    assert members.stdout.strip() == version
    (history,) = analyze([folder / "recording"]).histories
    assert {life.software for life in history.members} == {f"confluent-kafka-python {version}-rdkafka-{version}"}
    return history


def test_a_leader_that_hangs_is_named_with_its_version(tmp_path: Path) -> None:
    history = recorded("2.6.0", tmp_path, 22)  # a join of 3 s, a session of 11 s, and time for a slow start
    (stuck,) = [each for each in history.findings if each.detector == "stuck_completing"]
    assert stuck.known_bugs == ["librdkafka#4783"]
    assert "confluent-kafka-python 2.6.0-rdkafka-2.6.0 has a known bug" in stuck.text
    assert "fixed in 2.6.1" in stuck.text


def test_the_same_group_of_the_fixed_version_settles(tmp_path: Path) -> None:
    history = recorded("2.6.1", tmp_path, 12)
    assert not [each for each in history.findings if each.detector == "stuck_completing" or each.known_bugs]
    last = history.rebalances[-1]
    assert (last.outcome, last.members_after) == ("stable", 11)

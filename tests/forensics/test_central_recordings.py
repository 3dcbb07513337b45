"""Real coordinators of the draft and of the rewrite behind the recorder: their groups are listed, and not explained."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kcoord_wire.central.broker import CentralBroker, RewriteBroker
from kcoord_wire.central.client import CentralConsumer
from kcoord_wire.central.draft.events import ConsumerSettings
from kcoord_wire.central.rewrite import events as rewrite
from kcoord_wire.cli.main import main
from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.messages.rewrite import RewriteJoinGroupRequest
from kcoord_wire.recorder.proxy import Recorder
from tests.support.rewrite_wire import RewriteWire
from tests.support.waiting import eventually, eventually_async

pytestmark = pytest.mark.slow

SESSION_MS = 2_000


async def consume(recorder: Recorder) -> None:
    """One consumer, until it owns all partitions."""
    host, _, port = recorder.address.rpartition(":")
    bootstrap = (BrokerAddress(-1, host, int(port)),)
    settings = ConsumerSettings("g", "c-1", '{"orders": 1}', bootstrap, session_timeout_ms=SESSION_MS)
    async with asyncio.timeout(120), CentralConsumer(settings) as consumer:
        await eventually_async(lambda: len(consumer.partitions) == 4)


def test_a_recording_of_the_draft_lists_its_group(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    with (
        CentralBroker(topics={"orders": 4}, rate=100.0) as broker,
        Recorder(broker.address, folder=folder) as recorder,
    ):
        eventually(lambda: broker.epoch is not None)
        asyncio.run(consume(recorder))
    analysis = analyze([folder])
    assert analysis.losses == []
    [history] = analysis.histories
    assert "0.8 draft" in history.group.blind[0]
    assert main(["analyze", str(folder), "--out", str(tmp_path / "report")]) == 0
    assert "0.8 draft" in (tmp_path / "report" / "report.html").read_text("utf-8")


def test_a_recording_of_the_rewrite_lists_its_group(tmp_path: Path) -> None:
    members = rewrite.CoordinatorSettings(shards=4, min_session_timeout_ms=1_000)
    with (
        RewriteBroker(topics={"orders": 4}, settings=members) as broker,
        Recorder(broker.address, folder=tmp_path) as recorder,
    ):
        eventually(lambda: len(broker.shards) == members.shards)
        with RewriteWire(recorder.address) as wire:
            request = RewriteJoinGroupRequest(group_id="g", session_timeout_ms=SESSION_MS, strategy="range")
            request.topics = ["orders"]
            assert len(wire.ask(request).assigned_partitions[0].partitions) == 4
    analysis = analyze([tmp_path])
    assert analysis.losses == []
    [history] = analysis.histories
    assert "consumer rewrite" in history.group.blind[0]

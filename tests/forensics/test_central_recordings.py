"""Real coordinators of the draft and of the rewrite behind the recorder: what the recordings explain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kcoord_wire import messages as m
from kcoord_wire.central.broker import CentralBroker
from kcoord_wire.central.client import CentralConsumer
from kcoord_wire.central.draft.events import ConsumerSettings, CoordinatorSettings
from kcoord_wire.central.rewrite import events as rewrite
from kcoord_wire.central.rewrite_broker import RewriteBroker
from kcoord_wire.cli.main import main
from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import Cause, GroupHistory
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.messages.central import RegisterConsumerRequest, RegisterConsumerResponse
from kcoord_wire.messages.rewrite import RewriteJoinGroupRequest
from kcoord_wire.recorder.proxy import Recorder
from kcoord_wire.zookeeper.ensemble import Ensemble
from tests.support.draft_wire import DraftWire
from tests.support.group_client import until
from tests.support.rewrite_wire import RewriteWire
from tests.support.scripted_coordinator import eventually

pytestmark = pytest.mark.slow

SESSION_MS = 2_000
SETTINGS = CoordinatorSettings(max_ping_retries=0, rebalance_backoff_ms=200)


def settings(name: str, recorder: Recorder) -> ConsumerSettings:
    host, _, port = recorder.address.rpartition(":")
    bootstrap = (BrokerAddress(-1, host, int(port)),)
    return ConsumerSettings("g", name, '{"orders": 1}', bootstrap, session_timeout_ms=SESSION_MS)


class Group:
    """Consumers that read all they get.

    :ivar consumers: by name
    """

    def __init__(self, recorder: Recorder, stack: AsyncExitStack) -> None:
        self._recorder, self._stack = recorder, stack
        self.consumers: dict[str, CentralConsumer] = {}

    async def add(self, name: str) -> None:
        consumer = CentralConsumer(settings(name, self._recorder))
        self.consumers[name] = await self._stack.enter_async_context(consumer)
        reading = asyncio.create_task(self._read(consumer))
        self._stack.callback(reading.cancel)

    async def owns(self, **counts: int) -> None:
        """Wait until each of these consumers has so many partitions."""
        await eventually(lambda: {name: len(self.consumers[name].partitions) for name in counts} == counts)

    async def _read(self, consumer: CentralConsumer) -> None:
        async for _ in consumer:
            pass


def history_of(folder: Path) -> GroupHistory:
    analysis = analyze([folder])
    assert analysis.losses == []
    (history,) = analysis.histories
    return history


def noted(caplog: pytest.LogCaptureFixture, what: str) -> list[object]:
    return [record for record in caplog.records if getattr(record, "what", None) == what]


def run(recorder: Recorder, scenario: Callable[[Group], object]) -> None:
    async def all_of_it() -> None:
        async with asyncio.timeout(120), AsyncExitStack() as stack:
            await scenario(Group(recorder, stack))  # type: ignore[misc]  # a coroutine function

    asyncio.run(all_of_it())


def test_a_recording_of_real_consumers_is_explained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "kcoord_wire.central")

    async def scenario(group: Group) -> None:
        await group.add("c-1")
        await group.owns(**{"c-1": 4})
        await group.add("c-2")
        await group.owns(**{"c-1": 2, "c-2": 2})
        await asyncio.to_thread(silent_consumer, recorder)
        await group.owns(**{"c-1": 2, "c-2": 2})
        group.consumers["c-2"].shutdown()
        await group.owns(**{"c-1": 4})

    with (
        CentralBroker(topics={"orders": 4}, rate=100.0, settings=SETTINGS) as broker,
        Recorder(broker.address, folder=tmp_path / "recording") as recorder,
    ):
        until(lambda: broker.epoch is not None)
        run(recorder, scenario)
    history = history_of(tmp_path / "recording")
    causes = [(row.cause, row.member_id) for row in history.rebalances if row.outcome == "stable"]
    assert causes[:2] == [(Cause.NEW_MEMBER, "c-1"), (Cause.NEW_MEMBER, "c-2")]
    assert (Cause.SESSION_EXPIRED, "mute") in causes
    assert causes[-1] == (Cause.MEMBER_LEFT, "c-2")
    assert any(row.last_member_id == "mute" for row in history.rebalances if row.outcome == "interrupted")
    assert len(causes) == len(noted(caplog, "rebalance completed"))
    assert {(row.topic, row.member_id) for row in history.ownership} == {("orders/1", "c-1"), ("orders/1", "c-2")}
    assert history.commits
    assert main(["analyze", str(tmp_path / "recording"), "--out", str(tmp_path / "report")]) == 0
    assert "session timeout" in capsys.readouterr().out
    assert "had not answered" in (tmp_path / "report" / "report.html").read_text("utf-8")


def silent_consumer(recorder: Recorder) -> None:
    """Register, and answer nothing, until the coordinator closes the connection."""
    fields = {"topic_count": '{"orders": 1}', "auto_offset_rest": "smallest", "session_timeout_ms": SESSION_MS}
    with DraftWire(int(recorder.address.rpartition(":")[2])) as wire:
        wire.ask(
            RegisterConsumerRequest(group_id="g", consumer_id="mute", **fields),
            RegisterConsumerResponse,
        )
        while True:
            try:
                wire.request()
            except (EOFError, ConnectionError):
                return


def test_a_takeover_on_a_real_zookeeper_is_explained(tmp_path: Path) -> None:
    async def scenario(group: Group) -> None:
        for name in ("c-1", "c-2"):
            await group.add(name)
        await group.owns(**{"c-1": 4, "c-2": 4})
        await asyncio.to_thread(first.stop)
        await eventually(lambda: second.epoch is not None)
        await group.owns(**{"c-1": 4, "c-2": 4})
        await asyncio.sleep(SESSION_MS / 1000)

    with Ensemble(1) as ensemble:
        first = CentralBroker(ensemble.connect, broker_id=1, topics={"orders": 4}, session_timeout_ms=4_000)
        second = CentralBroker(ensemble.connect, broker_id=2, topics={"orders": 4}, session_timeout_ms=4_000)
        with first:
            until(lambda: first.epoch is not None)
            with second, Recorder(first.address, folder=tmp_path) as recorder:
                run(recorder, scenario)
    history = history_of(tmp_path)
    takeovers = [row for row in history.rebalances if row.cause == Cause.COORDINATOR_FAILOVER]
    assert len(takeovers) == 1
    assert "2 consumers registered" in takeovers[0].detail or "1 consumer registered" in takeovers[0].detail
    assert "(epoch 2); the coordinator before was" in takeovers[0].detail


def test_a_recording_of_the_rewrite_is_explained(tmp_path: Path) -> None:
    members = rewrite.CoordinatorSettings(shards=4, min_session_timeout_ms=1_000)

    def join(consumer_id: str = "") -> RewriteJoinGroupRequest:
        request = RewriteJoinGroupRequest(group_id="g", session_timeout_ms=SESSION_MS, consumer_id=consumer_id)
        request.topics, request.strategy = ["orders"], "range"
        return request

    def is_rejected(wire: RewriteWire, joined: m.rewrite.RewriteJoinGroupResponse) -> bool:
        beat = m.HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.consumer_id)
        return bool(wire.ask(beat).error_code == rewrite.RewriteError.ILLEGAL_GENERATION)

    with (
        RewriteBroker(topics={"orders": 4}, settings=members) as broker,
        Recorder(broker.address, folder=tmp_path) as recorder,
    ):
        until(lambda: len(broker.shards) == members.shards)
        with RewriteWire(recorder.address) as first, RewriteWire(recorder.address) as second:
            one = first.ask(join())
            parked = second.send(join(), 0)
            until(lambda: is_rejected(first, one))
            one = first.ask(join(one.consumer_id))
            two = second.answer_to(join(), parked)
            second.close()  # its session ends later
            until(lambda: is_rejected(first, one))
            assert len(first.ask(join(one.consumer_id)).assigned_partitions[0].partitions) == 4
    history = history_of(tmp_path)
    assert [(row.cause, row.member_id, row.generation_id, row.outcome) for row in history.rebalances] == [
        (Cause.NEW_MEMBER, one.consumer_id, 1, "stable"),
        (Cause.NEW_MEMBER, two.consumer_id, 2, "stable"),
        (Cause.SESSION_EXPIRED, two.consumer_id, 3, "stable"),
    ]
    assert [len([row for row in history.ownership if row.generation_id == number]) for number in (1, 2, 3)] == [4, 4, 4]
    assert {life.protocol for life in history.members} == {"rewrite"}

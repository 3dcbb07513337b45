"""Disks that are full, slow or asked to be safe: traffic goes on whatever they do.

What the recorder does with each api.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey
from kcoord_wire.recorder import counters as recording_thread
from kcoord_wire.recorder import recording
from kcoord_wire.recorder.counters import GROUP_APIS, NUMBERS, RECORDED, REWRITTEN, TRACKED, plan_of
from kcoord_wire.recorder.proxy import Recorder
from kcoord_wire.recorder.recording import recording_files
from tests.support.recorders import (
    HEARTBEAT,
    SOON,
    coordinator,
    frames,
)
from tests.support.waiting import eventually
from tests.support.wire import Wire


def test_a_full_disk_ends_the_recording_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with coordinator() as served, Recorder(served.address, folder=tmp_path) as recorder, Wire(recorder.address) as wire:
        wire.call(HEARTBEAT, 4)
        eventually(lambda: recording_files(tmp_path)[0].stat().st_size > 200)

        def full(fd: int, data: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(recording.os, "write", full)
        wire.call(HEARTBEAT, 4)
        eventually(lambda: recorder.failure is not None)
        monkeypatch.undo()
        for _ in range(10):
            wire.call(HEARTBEAT, 4)
        with Wire(recorder.address) as other:
            other.call(kw.MetadataRequest(topics=None), 12)
    assert recorder.failure is not None
    assert recorder.failure.errno == errno.ENOSPC
    assert len(frames(tmp_path)) == 2, "what was written before is there, and whole"
    assert recorder.counters.not_recorded == 22
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == [f"nothing is recorded any more: {tmp_path}: No space left on device"]


def test_a_slow_disk_loses_frames_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording_thread, "HELD_FOR_DISK", 2_000)
    let_go = threading.Event()
    real = os.write
    with coordinator() as served, Recorder(served.address, folder=tmp_path) as recorder, Wire(recorder.address) as wire:

        def slow(fd: int, data: Any) -> int:
            let_go.wait(SOON)
            return real(fd, data)

        monkeypatch.setattr(recording.os, "write", slow)
        for _ in range(100):
            wire.call(HEARTBEAT, 4)
        lost = recorder.counters.not_recorded
        assert lost > 100
        let_go.set()
        thread = recorder.proxy.context.recording
        assert thread is not None
        eventually(lambda: not thread.unwritten)
        wire.call(HEARTBEAT, 4)
        eventually(lambda: "the disk has caught up" in caplog.text)
    assert len(frames(tmp_path)) == 202 - lost
    assert caplog.text.count("the disk is too slow") == 1


def test_durable_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(recording.os, "fsync", synced.append)
    with (
        coordinator() as served,
        Recorder(served.address, folder=tmp_path, fsync=True) as recorder,
        Wire(recorder.address) as wire,
    ):
        before = len(synced)
        wire.call(HEARTBEAT, 4)
        eventually(lambda: len(synced) > before)


def test_files_are_rotated_under_traffic(tmp_path: Path) -> None:
    with (
        coordinator() as served,
        Recorder(served.address, folder=tmp_path, max_file_bytes=1_000) as recorder,
        Wire(recorder.address) as wire,
    ):
        for _ in range(50):
            wire.call(HEARTBEAT, 4)
    assert len(recording_files(tmp_path)) > 5
    assert len(frames(tmp_path)) == 100


def test_the_apis_of_groups_are_recorded() -> None:
    """By their names: every api of Kafka's that is about a group, four to reach it, and where partitions end."""
    plan = plan_of("group", rewrite=False)
    recorded = {key for key in API_NAMES if plan(key) & RECORDED}
    assert recorded == GROUP_APIS
    assert {plan(key) for key in GROUP_APIS} == {TRACKED | RECORDED}
    assert {ApiKey.JOIN_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.OFFSET_COMMIT, ApiKey.METADATA} < recorded
    assert {key for key in API_NAMES if plan(key) & NUMBERS} == {ApiKey.FETCH}
    assert recorded.isdisjoint({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


def test_all_records_everything_but_passwords() -> None:
    plan = plan_of("all", rewrite=False)
    assert {key for key in range(200) if not plan(key) & RECORDED} == {ApiKey.SASL_AUTHENTICATE}
    assert plan(ApiKey.PRODUCE) == RECORDED, "it may have no response, so none is waited for"


def test_only_responses_with_addresses_are_rewritten() -> None:
    for apis in ("group", "all"):
        plan = plan_of(apis, rewrite=True)
        rewritten = {key for key in range(200) if plan(key) & REWRITTEN}
        assert rewritten == {ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER}

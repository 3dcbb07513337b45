"""`kcoord central status`: tables, JSON, and what it says when something is missing."""

from __future__ import annotations

import json

import pytest

from kcoord_wire.central.broker import CentralBroker
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.status import ClusterStatus, GroupStatus
from kcoord_wire.cli.central import status_to_json
from kcoord_wire.cli.main import main
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.ensemble import Ensemble
from kcoord_wire.zookeeper.leadership import LeaderRecord
from tests.support.draft_wire import DraftWire
from tests.support.group_client import until
from tests.support.zookeeper import chroot_of_its_own


def test_a_silent_coordinator_leaves_nulls() -> None:
    group = GroupStatus({Partition("orders", "1-0"): "c-0"}, {Partition("orders", "1-0"): 5})
    status = ClusterStatus(LeaderRecord(1, 3), groups={"g": group}, silence="it does not answer")
    plain = status_to_json(status)
    assert plain["coordinator"] == {"broker": 1, "epoch": 3, "elected_ms_ago": None, "silence": "it does not answer"}
    assert plain["groups"]["g"] == {
        "generation": None,
        "phase": None,
        "waits_for": None,
        "consumers": None,
        "owners": {"orders/1-0": "c-0"},
        "offsets": {"orders/1-0": 5},
    }


@pytest.mark.slow
def test_a_cluster_as_tables_and_as_json(zookeeper: Ensemble, capsys: pytest.CaptureFixture[str]) -> None:
    connect = zookeeper.connect + chroot_of_its_own()
    assert main(["central", "status", "--zookeeper", connect]) == 0
    line = "coordinator: none is elected; ZooKeeper has no broker, topic or group there\n\n"
    assert capsys.readouterr().out == line
    with CentralBroker(connect, topics={"orders": 2}, session_timeout_ms=4_000) as broker:
        until(lambda: broker.epoch == 1)
        with DraftWire(broker.port) as wire:
            register = m.RegisterConsumerRequest(group_id="billing", consumer_id="till-1", session_timeout_ms=60_000)
            register.topic_count, register.auto_offset_rest = '{"orders":1}', "smallest"
            wire.ask(register, m.RegisterConsumerResponse)
            wire.request()
            assert main(["central", "status", "--zookeeper", connect]) == 0
            out = capsys.readouterr().out
            assert "coordinator: broker 1, epoch 1, elected " in out
            rows = [line.split() for line in out.splitlines()]
            assert ["1", broker.address, "orders:2"] in rows
            assert ["billing", "1", "stopping", "till-1", "0", "0"] in rows
            assert ["billing", "till-1", "127.0.0.1", '{"orders":1}', "60000", "0", "0"] in rows
            assert main(["central", "status", "--zookeeper", connect, "--format", "json"]) == 0
            plain = json.loads(capsys.readouterr().out)
            assert plain["brokers"] == {"1": broker.address}
            assert plain["groups"]["billing"]["waits_for"] == ["till-1"]


@pytest.mark.slow
def test_without_zookeeper_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["central", "status", "--zookeeper", "127.0.0.1:1", "--connect-seconds", "1"]) == 1
    out, errors = capsys.readouterr()
    assert (out, errors) == ("", "kcoord: no ZooKeeper answers at 127.0.0.1:1 within 1 s\n")

"""`kcoord simulate rolling-bounce --from`: a deploy of the group in a capture, and where its figures are from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kcoord_wire.cli.rolling_bounce import captured_group
from kcoord_wire.recorder.recording import RecordingWriter
from kcoord_wire.worlds.group.cluster import Cluster
from kcoord_wire.worlds.group.rolling_bounce import PROTOCOLS, BounceWorkload, simulate_bounce
from tests.support.clusters import QUICK
from tests.support.conversations import CAPTURES
from tests.support.recordings import recording_tap

Run = Callable[..., tuple[int, str, str]]
BOUNCE = ("simulate", "rolling-bounce")
EAGER = str(CAPTURES / "eager_range.pcap")


def test_a_capture_sets_what_the_options_leave_open(kcoord: Run) -> None:
    status, out, err = kcoord(*BOUNCE, "--from", EAGER, "--down-ms", "3000", "--assign-ms", "20", "--format", "json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["from"]["group"], found["from"]["protocol"]) == ("billing", "eager")
    origins = {each["name"]: each for each in found["from"]["fields"]}
    assert origins.keys() == found["workload"].keys()
    assert {name: each["value"] for name, each in origins.items()} == found["workload"]
    assert {name for name, each in origins.items() if each["origin"] == "given"} == {"down_ms", "assign_ms"}
    observed = [name for name, each in origins.items() if each["origin"] == "observed"]
    timeouts = ["session_timeout_ms", "heartbeat_interval_ms", "rebalance_timeout_ms"]
    assert observed == ["members", "topics", "revoke_ms", *timeouts, "client"]
    assert found["workload"]["members"] == 3
    assert [result["label"] for result in found["results"]] == [*PROTOCOLS, "consumer"]


def test_the_table_says_where_figures_are_from_and_marks_now(kcoord: Run) -> None:
    _, out, _ = kcoord(*BOUNCE, "--from", str(CAPTURES / "cooperative.pcap"), "--down-ms", "3000")
    lines = out.splitlines()
    assert lines[0] == "Group billing: cooperative, cooperative-sticky"
    assert any(line.split()[:3] == ["members", "3", "observed"] for line in lines)
    assert any(line.split()[:3] == ["down_ms", "3000", "given"] for line in lines)
    assert any(line.split()[:3] == ["rate_per_s", "50.0", "assumed"] for line in lines)
    assert [line.split("  ")[0] for line in lines[-7:] if line][-5:] == [
        "eager",
        "sticky",
        "cooperative (now)",
        "static",
        "consumer",
    ]


def record(folder: Path, own: BounceWorkload) -> None:
    """Record an eager group of which one member is restarted."""
    writer = RecordingWriter(folder)
    with writer, Cluster(3, topics=own.topics, config=QUICK, tap=recording_tap(writer)) as cluster:
        for name in own.names:
            cluster.member(name, own.options(PROTOCOLS["eager"], name))
        cluster.run(60_000)
        cluster.run(cluster.shut_down("m3") + own.down_ms)
        cluster.member("m3", own.options(PROTOCOLS["eager"], "m3"))
        cluster.run(60_000)


def test_a_deploy_from_a_recording_costs_what_the_group_would(tmp_path: Path) -> None:
    """A group is recorded, and simulated from its recording: the result is that of the group's own figures."""
    own = BounceWorkload(members=4, topics={"orders": 24}, revoke_ms=100, assign_ms=100, down_ms=6_000, poll_ms=0)
    record(tmp_path, own)
    group = captured_group([str(tmp_path)], None, None)
    assert group.protocol == "eager"
    taken = BounceWorkload(**group.fields)
    assert (taken.members, taken.topics) == (4, {"orders": 24})
    for protocol in ("eager", "cooperative"):
        expected, found = (simulate_bounce(workload, protocol) for workload in (own, taken))
        assert found.pause_partition_ms == pytest.approx(expected.pause_partition_ms, rel=0.1)


def test_one_of_several_groups_is_chosen_by_its_name(kcoord: Run) -> None:
    folder = str(CAPTURES.parent / "recordings")
    status, out, err = kcoord(*BOUNCE, "--from", folder)
    assert (status, out) == (1, "")
    assert "several groups are in" in err
    assert "late-confluent, lost-join-confluent" in err.partition("choose one with --group: ")[2]
    status, out, _ = kcoord(*BOUNCE, "--from", folder, "--group", "late-confluent", "--protocol", "eager")
    assert status == 0
    assert "Group late-confluent: cooperative" in out


@pytest.mark.parametrize(
    ("wrong", "status", "sentence"),
    [
        (("--from", EAGER, "--group", "payroll"), 1, "no consumer group called payroll on the wire is in"),
        (("--from", str(CAPTURES / "missing.pcap")), 1, "missing.pcap"),
        (("--group", "billing"), 2, "--group and --port belong to --from"),
        (
            ("--from", str(CAPTURES.parent / "recordings" / "modern-java.kcrec")),
            1,
            "shows no complete rebalance of group modern-java in the classic protocol",
        ),
        (("--from", EAGER, "--members", "9"), 1, "9 members cannot share 8 partitions"),
    ],
)
def test_what_a_capture_lacks_is_explained(kcoord: Run, wrong: tuple[str, ...], status: int, sentence: str) -> None:
    found, out, err = kcoord(*BOUNCE, *wrong)
    assert (found, out) == (status, "")
    assert sentence in err

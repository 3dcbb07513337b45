"""`kcoord simulate rolling-bounce`: the table, the JSON, the plot, and the group of a capture."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kcoord_wire.cli.rolling_bounce import captured_group
from kcoord_wire.recorder.recording import RecordingWriter
from kcoord_wire.worlds.consumer_groups.rolling_bounce import PROTOCOLS, BounceWorkload, simulate_bounce
from kcoord_wire.worlds.group.world import Cluster
from tests.support.clusters import QUICK
from tests.support.conversations import CAPTURES
from tests.support.recordings import recording_tap

Run = Callable[..., tuple[int, str, str]]
SMALL = ("simulate", "rolling-bounce", "--members", "3", "--partitions", "9", "--down-ms", "2000")
ROOT = Path(__file__).parents[2]
# A process of its own: in this one, modules that other tests have imported hold the library already.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from kcoord_wire.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def test_the_table_has_a_line_for_each_protocol(kcoord: Run) -> None:
    status, out, err = kcoord(*SMALL)
    assert (status, err) == (0, "")
    rows = [line.split("  ")[0].strip() for line in out.splitlines()]
    assert [name for name in rows if name in ("eager", "sticky", "cooperative", "static")] == [
        "eager",
        "sticky",
        "cooperative",
        "static",
    ]
    assert "Restarting 3 instances one after the other; partitions of events (9), 50 ms to close one" in out
    static = next(line for line in out.splitlines() if line.startswith("static"))
    assert static.split()[-3:-1] == ["1", "/"], "against eager"


def test_state_that_is_restored_has_its_options(kcoord: Run) -> None:
    stores = ("--aside", "--restore-ms", "1000", "--store", "memory", "--standbys", "1", "--warm-up")
    command = (*SMALL[:-1], "9000", *stores, "--protocol", "cooperative")
    _, out, _ = kcoord(*command)
    assert "1000 ms to restore state without a copy, stores in memory, 1 standbys, warm-up" in " ".join(out.split())
    _, out, _ = kcoord(*command, "--format", "json")
    found = json.loads(out)
    chosen = {name: found["workload"][name] for name in ("restore_ms", "store", "standbys", "warms_up")}
    assert chosen == {"restore_ms": 1_000, "store": "memory", "standbys": 1, "warms_up": True}
    [result] = found["results"]
    assert result["rebalances"] > 3 * 3, "one more at least for each restart"
    status, _, err = kcoord(*SMALL, "--standbys", "1")
    assert (status, "need a restore_ms above 0" in err) == (1, True)


def test_one_protocol_may_be_chosen(kcoord: Run) -> None:
    _, out, _ = kcoord(*SMALL, "--protocol", "cooperative")
    assert [line.split()[0] for line in out.splitlines()[2:] if line] == ["cooperative"]
    assert "eager " not in out


def test_json_has_the_workload_and_the_results(kcoord: Run) -> None:
    status, out, _ = kcoord(
        *SMALL, "--format", "json", "--aside", "--seed", "7", "--interval-ms", "9000", "--rate", "20"
    )
    assert status == 0
    found = json.loads(out)
    assert (found["workload"]["topics"], found["workload"]["opens_aside"], found["seed"]) == ({"events": 9}, True, 7)
    assert (found["workload"]["interval_ms"], found["workload"]["capacity_per_s"]) == (9_000, 2 * 20 * 3)
    results = {result["label"]: result for result in found["results"]}
    assert list(results) == ["eager", "sticky", "cooperative", "static", "consumer"]
    assert results["static"]["rebalances"] == 0
    assert results["eager"]["pause_partition_ms"] > results["cooperative"]["pause_partition_ms"]
    assert len(results["eager"]["times_ms"]) == len(results["eager"]["throughput"])
    assert results["eager"]["instances"].keys() == {"m1", "m2", "m3"}


def test_the_same_seed_gives_the_same_json(kcoord: Run) -> None:
    first, again, other = (kcoord(*SMALL, "--format", "json", "--seed", seed)[1] for seed in ("1", "1", "2"))
    assert first == again
    assert first != other


def test_several_topics_are_shared_by_the_members(kcoord: Run) -> None:
    _, out, _ = kcoord(
        *SMALL[:4], "--partitions", "a=4", "--partitions", "b=8", "--protocol", "static", "--format", "json"
    )
    found = json.loads(out)
    assert found["workload"]["topics"] == {"a": 4, "b": 8}
    assert found["results"][0]["opened"] == 12


def test_the_plot_shows_throughput_over_time(kcoord: Run, tmp_path: Path) -> None:
    assert kcoord(*SMALL, "--plot", str(tmp_path / "all.svg"))[0] == 0
    text = (tmp_path / "all.svg").read_text("utf-8")
    for part in ("eager", "cooperative", "static", "time since the first stop (s)", "records/s per instance"):
        assert f">{part}<" in text
    assert text.count('aria-roledescription="area mark"') == 0
    assert kcoord(*SMALL, "--protocol", "eager", "--plot", str(tmp_path / "one.svg"))[0] == 0
    one = (tmp_path / "one.svg").read_text("utf-8")
    assert "of 3 instances, eager: mean and standard deviation" in one
    assert one.count('aria-roledescription="area mark"') == 1


def test_what_limits_the_result_is_said(kcoord: Run) -> None:
    timeouts = ("--session-timeout-ms", "2000", "--heartbeat-interval-ms", "700")
    status, _, err = kcoord(*SMALL, "--protocol", "static", *timeouts)
    assert status == 0
    assert err == (
        "kcoord: static members are away for 2150 ms, longer than the session timeout of 2000: "
        "the group removes them, and rebalances\n"
    )
    _, _, err = kcoord(*SMALL, "--protocol", "static", "--capacity", "150")
    assert err == "kcoord: 150 records/s an instance do not suffice to work off the lag\n"


def test_the_help_names_the_defaults(
    kcoord: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        kcoord("simulate", "rolling-bounce", "--help")
    text = capsys.readouterr().out
    for field in dataclasses.fields(BounceWorkload):
        if isinstance(field.default, int) and field.name.endswith("_ms"):
            assert f"(default: {field.default})" in text, field.name


@pytest.mark.parametrize(
    ("library", "arguments", "extra"),
    [
        ("crc32c", (*SMALL, "--format", "json"), "records"),
        ("pyarrow", (*SMALL, "--from", "trace.pcap"), "analyze"),
        ("crc32c", ("serve", "--topics", "orders:12", "--port", "0"), "serve"),
        ("pyarrow", ("analyze", "trace.pcap"), "analyze"),
        ("pyarrow", ("watch", "--kafka", "localhost:1", "--once"), "analyze"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(library: str, arguments: tuple[str, ...], extra: str) -> None:
    command = [sys.executable, "-c", WITHOUT, library, *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("kcoord: ")
    assert run.stderr.endswith(f"needs {library}: pip install 'kcoord_wire[{extra}]'\n")


def test_times_have_the_range_of_kafkas_settings(kcoord: Run) -> None:
    status, _, err = kcoord(*SMALL[:-1], "99999999999999999999")
    assert (status, "is not a whole number from 0 to 2147483647" in err) == (2, True)


def test_heartbeats_rarer_than_the_session_timeout(kcoord: Run) -> None:
    status, _, err = kcoord(*SMALL, "--heartbeat-interval-ms", "45000")
    assert status == 1
    assert err == "kcoord: heartbeat_interval_ms (45000) must be less than session_timeout_ms (45000)\n"


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
    assert [result["label"] for result in found["results"]] == list(PROTOCOLS)


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

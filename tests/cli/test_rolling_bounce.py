"""`kcoord simulate rolling-bounce`: the table, the JSON, the plot, and what it says about arguments."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kcoord_wire.worlds.group.rolling_bounce import BounceWorkload

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
    ("wrong", "status", "sentence"),
    [
        (("--partitions", "many"), 2, "'many' is not a whole number from 1 up"),
        (("--partitions", "=4"), 2, "'=4' is neither COUNT nor TOPIC=COUNT"),
        (("--partitions", "events=4"), 2, "--partitions names a topic twice"),
        (("--members", "0"), 2, "'0' is not a whole number from 1 up"),
        (("--down-ms", "-5"), 2, "'-5' is not a whole number from 0 to 2147483647"),
        (("--rate", "nan"), 2, "'nan' is not a number above 0"),
        (("--plot", "a.pdf"), 2, "'a.pdf' ends neither in .svg nor in .png"),
        (("--protocol", "lazy"), 2, "invalid choice: 'lazy'"),
        (("--members", "10"), 1, "10 members cannot share 9 partitions"),
        (("--interval-ms", "0"), 1, "interval_ms must be above 0"),
        (("--assign-ms", "200000", "--protocol", "eager"), 1, "600000 ms to open them; max.poll.interval.ms is 300000"),
    ],
)
def test_wrong_arguments_are_explained(kcoord: Run, wrong: tuple[str, ...], status: int, sentence: str) -> None:
    found, out, err = kcoord(*SMALL, *wrong)
    assert (found, out) == (status, "")
    assert sentence in err


@pytest.mark.parametrize(
    ("library", "arguments", "extra"),
    [
        ("crc32c", (*SMALL, "--format", "json"), "records"),
        ("pyarrow", (*SMALL, "--from", "trace.pcap"), "analyze"),
        ("rich", SMALL, "cli"),
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

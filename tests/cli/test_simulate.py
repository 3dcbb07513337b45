"""`kcoord simulate`: the summary, the status, the scripts that failures print; searches and known bugs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from kcoord_wire.clients.bugs import CLIENT_BUGS
from kcoord_wire.worlds.central import draft_world as script
from tests.support.planted_bugs import two_leaders
from tests.support.planted_central_bugs import offsets_not_committed_before_start
from tests.support.planted_consumer_group_bugs import kafka_16147
from tests.support.planted_transaction_bugs import stable_offset_is_the_end

Run = Callable[..., tuple[int, str, str]]
OVERLAPS = "9"  # a seed in which a member of the rewrite is paused for longer than its session


@pytest.mark.parametrize(
    ("world", "counted"),
    [
        ("", "rebalances"),
        ("central", "rebalances"),
        ("consumer-groups", "rebalances"),
        pytest.param("marshal", "tenures", marks=pytest.mark.slow),
        pytest.param("rewrite", "rebalances", marks=pytest.mark.slow),
        pytest.param("rewrite --stops-with-session", "rebalances", marks=pytest.mark.slow),
        ("transactions", "transactions"),
    ],
)
def test_seeds_are_run_and_summed_up(kcoord: Run, world: str, counted: str) -> None:
    status, out, err = kcoord("simulate", *world.split(), "--jobs", "1", "--seeds", "0:3")
    assert (status, err) == (0, "")
    summary = rf"3 of 3 seeds, [\d,]+ steps, [\d,]+ steps/s, 0 failures\n[\d,]+ {counted}; settled at most .*\n"
    assert re.fullmatch(summary, out)


@pytest.mark.parametrize(
    ("world", "plant", "texts"),
    [
        ("", two_leaders, ["run_script(Script(Cluster, 0"]),
        ("central", offsets_not_committed_before_start, ["run_script(Script(CentralCluster, 0"]),
        ("transactions", stable_offset_is_the_end, ["stable offset: ", "run_script(Script(TransactionCluster, 0"]),
    ],
)
def test_a_failure_prints_its_seed_and_its_script(
    kcoord: Run,
    monkeypatch: pytest.MonkeyPatch,
    world: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    texts: list[str],
) -> None:
    plant(monkeypatch)
    status, out, err = kcoord("simulate", *world.split(), "--seeds", "0", "--jobs", "1")
    assert status == 1
    assert "1 failures" in out
    assert [text for text in texts if text not in err] == []
    assert err.endswith("kcoord: seeds that break a law: 0\n")


def test_it_stops_after_the_steps_asked_for(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "--seeds", "5:100000", "--steps", "1500", "--jobs", "1")
    assert status == 0
    assert "of 99,995 seeds" in out


def test_seeds_run_in_several_processes(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "--seeds", "0:6", "--jobs", "2")
    assert status == 0
    assert "6 of 6 seeds" in out


def test_two_owners_without_epochs_are_printed(kcoord: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random script has 20 actions or more, and takes long to shrink."""

    def late_messages(seed: int, **options: Any) -> script.Script[script.CentralCluster]:
        drawn = random_script(seed, **options)
        actions = [script.Do(0, "member", name, "g", None, True, 3_000) for name in ("c1", "c2")]
        late = script.Do(6_000, "delay", "c2", "broker-1", 12_000, True, True, 1_500)
        last = script.Do(14_000, "crash", "nobody")
        return drawn.with_options(topics={"t1": 1}, brokers=2).with_actions([*actions, late, last])

    random_script = script.random_script
    monkeypatch.setattr(script, "random_script", late_messages)
    status, out, err = kcoord("simulate", "central", "--no-epoch", "--seeds", "1", "--jobs", "1")
    assert (status, err) == (0, "")
    assert "1 of 1 runs: two owners of a partition; the shortest script:\none owner: " in out
    assert "'is_fenced': False" in out


@pytest.mark.slow
def test_an_overlap_is_printed_as_a_script(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "rewrite", "--jobs", "1", "--seeds", OVERLAPS, "--find-overlap")
    assert status == 0
    assert "1 of 1 runs: two members fetch a partition; the shortest script:" in out
    assert "run_script(Script(RewriteCluster, " in out


@pytest.mark.slow
def test_anomalies_of_the_library_are_printed_as_scripts(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "marshal", "--jobs", "1", "--seeds", "0:4", "--rules", "library")
    assert status == 0
    kinds = re.findall(r"^([a-z ]+): [\d,]+ in \d+ runs; the shortest script of the first of them:$", out, re.MULTILINE)
    assert kinds == sorted(kinds)
    assert "phantom claim by replay" in kinds
    assert out.count("run_script(Script(MarshalCluster, ") == len(kinds)


# ---- searches


def test_a_search_says_how_far_it_went(kcoord: Run) -> None:
    status, out, err = kcoord("simulate", "consumer-groups", "--search", "--perturbations", "0")
    assert (status, err) == (0, "")
    assert re.match(r"[\d,]+ states, all there are within these bounds; [\d,]+ steps between them", out)
    status, out, _ = kcoord("simulate", "consumer-groups", "--search", "--depth", "3", "--static", "--topics", "2")
    assert status == 0
    assert "those within 3 steps" in out


def test_a_share_partition_is_searched(kcoord: Run) -> None:
    status, out, err = kcoord("simulate", "share-partition", "--batches", "1")
    assert (status, err) == (0, "")
    assert "all there are within these bounds" in out
    assert "states of the partition" in out
    status, _, err = kcoord("simulate", "share-partition", "--batches", "1,x")
    assert status == 2
    assert "--batches takes numbers from 1 up, separated by commas, not '1,x'" in err


def test_a_search_prints_the_run_that_breaks_a_law(kcoord: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka_16147(monkeypatch)
    status, out, err = kcoord("simulate", "consumer-groups", "--search")
    assert status == 1
    assert "ValidPartitionEpoch" in err
    assert "breaks a law:\n  m1 arrives\n" in out


# ---- known bugs


def test_the_list_has_every_bug_with_its_versions(kcoord: Run) -> None:
    status, out, err = kcoord("simulate", "bug", "--list")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[::2]] == list(CLIENT_BUGS)
    assert "KAFKA-14639      since 3.0.0, fixed in 3.4.1, 3.5.0" in out
    assert "librdkafka#3891  open" in out


def test_a_bug_is_played_with_and_without_it(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "bug", "KAFKA-14639")
    assert status == 0
    assert "with the bug: two_owners 2" in out
    assert "without: two_owners 0" in out
    assert CLIENT_BUGS["KAFKA-14639"].reference in out


def test_explain_shows_what_the_frames_say(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "bug", "librdkafka#4783", "--explain")
    assert status == 0
    with_bug, without = out.split("\nwithout:")
    assert "stuck_completing (critical)" in with_bug
    assert "librdkafka 2.6.0 has a known bug that does this, librdkafka#4783, fixed in 2.6.1" in with_bug
    assert without.endswith("  no finding\n")


def test_summaries_are_json_for_programs(kcoord) -> None:
    status, out, _ = kcoord("simulate", "--seeds", "0:3", "--jobs", "1", "--format", "json")
    found = json.loads(out)
    assert (status, found["world"], found["done"], found["failed"]) == (0, "group", 3, [])
    assert found["rebalances"] > 0
    status, out, _ = kcoord(
        "simulate", "marshal", "--jobs", "1", "--seeds", "0:4", "--rules", "library", "--format", "json"
    )
    assert status == 0
    assert all(each["count"] and each["seeds"] for each in json.loads(out)["others"].values())
    status, out, _ = kcoord("simulate", "consumer-groups", "--search", "--depth", "2", "--format", "json")
    assert (status, json.loads(out)["is_whole"], json.loads(out)["violation"]) == (0, False, None)


def test_bugs_are_json_for_programs(kcoord) -> None:
    _, out, _ = kcoord("simulate", "bug", "--list", "--format", "json")
    names = [json.loads(line)["name"] for line in out.splitlines()]
    assert "KAFKA-14639" in names
    _, out, _ = kcoord("simulate", "bug", "KAFKA-14639", "--format", "json")
    played = json.loads(out)["played"]
    assert played["with the bug"]["damage"] != played["without"]["damage"]

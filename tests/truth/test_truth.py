"""The tap changes nothing and misses nothing; labels are what members did; the scorer can fail; the causes agree."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.codec.registry import decode_request
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Trigger
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory, GroupSummary, Rebalance, RemovedMember
from kcoord_wire.forensics.wire.rules import RULES as WIRE_RULES
from kcoord_wire.forensics.wire.rules import UNKNOWN
from kcoord_wire.messages import FindCoordinatorRequest, JoinGroupRequest, LeaveGroupRequest, MetadataRequest
from kcoord_wire.worlds.group.world import Cluster, random_script
from tests.truth import causes, report
from tests.truth.__main__ import main
from tests.truth.labels import RULES, Label, labels_of
from tests.truth.measure import comparisons_of
from tests.truth.pipeline import Origin, Outcome, run
from tests.truth.scenarios import ACTS, Scenario, play, scenarios
from tests.truth.scorer import CHECKS, Score, Tolerance, compare, match
from tests.truth.world import Recorder, Shape, log_rows

MS = 1_000_000
QUICK = GroupConfig(initial_rebalance_delay_ms=0)
SUBSET = [scenario for scenario in scenarios(330) if scenario.shapes[0].size <= 12][::5]
"""Of every kind some; small ones, for the time they take."""

# The simulated coordinator has no ACLs, and its crashes are shorter than sessions: tests/incidents has refused members
# and outages of real brokers.
NOT_PLAYED = {Cause.UNKNOWN, Cause.REFUSED, Cause.OUTAGE}


# ---- the tap


def lived(seed: int, tap: Recorder | None) -> tuple[str, int]:
    """A digest of the whole trace of a random life, and its last moment."""
    script = random_script(seed).with_options(tap=tap)
    with script.open() as sim:
        script.play(sim)
        sim.run(20_000)
        return hashlib.sha256("\n".join(map(str, sim.trace)).encode()).hexdigest(), sim.steps


@pytest.mark.parametrize("seed", range(8))
def test_a_tap_changes_nothing(seed: int) -> None:
    recorder = Recorder()
    assert lived(seed, recorder) == lived(seed, None)
    assert recorder.rows()


@pytest.mark.parametrize("seed", range(8))
def test_frames_are_as_a_broker_has_them(seed: int) -> None:
    recorder = Recorder()
    lived(seed, recorder)
    rows = recorder.rows()
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    open_now: set[str] = set()
    waiting: dict[str, Counter[int]] = {}
    for _, name, direction, frame in rows:
        client, _, broker = name.partition("-")
        assert broker.startswith("10.0.0.1:9092#")
        assert client.startswith("10.0.")
        if direction == "opened":
            assert name not in open_now
            open_now.add(name)
            waiting[name] = Counter()
            continue
        assert name in open_now, f"{direction} on {name}, which is not open"
        if direction == "closed":
            open_now.discard(name)
        elif direction == "request":
            header, _ = decode_request(frame)
            waiting[name][header.correlation_id] += 1
        else:
            assert waiting[name][int.from_bytes(frame[:4], "big")], "a response without a request"


def test_the_coordinator_knows_the_address_of_every_process() -> None:
    recorder = Recorder()
    with Cluster(1, topics={"orders": 4}, config=QUICK, tap=recorder) as sim:
        for number in range(300):
            sim.member(f"m{number}", commit_ms=None)
        sim.run_until(sim.is_settled)
        hosts = {process.host for process in sim.processes.values()}
        assert len(hosts) == 300
        sim.crash("m7")
        address = sim.processes["m7"].host
        assert sim.restart("m7").host == address
        sim.run_until(sim.is_settled)
        account = sim.begun[-1]
        assert account.client_host == f"/{sim.processes[account.client_id].host}"
    assert {row[1].partition(":")[0] for row in recorder.rows()} == hosts


def test_members_knowledge_of_topics_can_be_left_out() -> None:
    for metadata in (True, False):
        recorder = Recorder(metadata=metadata)
        with Cluster(1, topics={"orders": 4}, config=QUICK, tap=recorder) as sim:
            for client in ("java", "oldest", "aiokafka", "kafkajs", "librdkafka", "kafka-python"):
                sim.member(client, client=client)
            sim.run_until(sim.is_settled)
            sim.add_partitions("orders", 2)
            sim.run(5_000)
        messages = [decode_request(frame)[1] for _, _, direction, frame in recorder.rows() if direction == "request"]
        assert sum(isinstance(message, MetadataRequest) for message in messages) == (12 if metadata else 0)
        assert sum(isinstance(message, FindCoordinatorRequest) for message in messages) >= 6


def test_a_request_of_ones_own_is_on_the_wire_too() -> None:
    recorder = Recorder()
    with Cluster(1, config=QUICK, tap=recorder) as sim:
        sim.ask(FindCoordinatorRequest(key="group"), 2)
    assert [row[2] for row in recorder.rows()] == ["opened", "request", "response", "closed"]


# ---- what members can do


def settled(*names: str, **options: Any) -> Cluster:
    sim = Cluster(3, topics={"orders": 8}, config=QUICK)
    for name in names:
        sim.member(name, session_timeout_ms=6_000, rebalance_timeout_ms=8_000, heartbeat_interval_ms=1_000, **options)
    sim.run_until(sim.is_settled)
    return sim


def sent(sim: Cluster, name: str, message: type) -> list[Any]:
    lines = (line for line in sim.trace if line.who == name and line.what == "sends")
    return [line.detail for line in lines if isinstance(line.detail, message)]


@pytest.mark.parametrize("client", ["java", "oldest"])
def test_a_consumer_that_does_not_poll_leaves_and_comes_back(client: str) -> None:
    with settled("m1", "m2", client=client) as sim:
        before = sim.processes["m1"].member.member_id
        sim.stall("m1", 12_000)
        sim.run(7_900)
        assert sim.processes["m1"].member.member_id == before
        sim.run(300)
        (goodbye,) = sent(sim, "m1", LeaveGroupRequest)
        reason = goodbye.members[0].reason if client == "java" else None
        assert reason == ("consumer poll timeout has expired." if client == "java" else None)
        sim.run(3_000)
        assert set(sim.owners().values()) == {"m2"}
        sim.run_until(sim.is_settled)
        assert set(sim.owners().values()) == {"m1", "m2"}
        assert [label.cause for label in labels_of(sim)][-2:] == [Cause.POLL_TIMEOUT, Cause.NEW_MEMBER]


def test_a_consumer_that_polls_in_time_stays() -> None:
    with settled("m1", "m2") as sim:
        before = sim.processes["m1"].member.member_id
        sim.stall("m1", 5_000)
        sim.member("m3")
        sim.run(4_900)
        joins = len(sent(sim, "m1", JoinGroupRequest))
        sim.run_until(sim.is_settled)
        assert len(sent(sim, "m1", JoinGroupRequest)) == joins + 1
        assert sim.processes["m1"].member.member_id == before
        assert sent(sim, "m1", LeaveGroupRequest) == []


def test_a_static_consumer_that_does_not_poll_says_no_goodbye() -> None:
    with settled("m1", instance_id="i1") as sim:
        sim.stall("m1", 60_000)
        sim.run(30_000)
        assert sent(sim, "m1", LeaveGroupRequest) == []
        assert sim.begun[-1].trigger is Trigger.SESSION_EXPIRED


def test_a_user_asks_for_a_rebalance_and_changes_the_assignors() -> None:
    with settled("m1", "m2", assignors=("range", "roundrobin")) as sim:
        leader = sim.leader()
        assert leader is not None
        sim.rejoin(leader.name, "a new rack")
        sim.run(20)
        sim.run_until(sim.is_settled)
        assert sent(sim, leader.name, JoinGroupRequest)[-1].reason == "a new rack"
        sim.offer("m1", ["roundrobin"])
        sim.run(20)
        sim.run_until(sim.is_settled)
        assert sim.begun[-1].protocol == "roundrobin"
        assert [label.cause for label in labels_of(sim)][-2:] == [Cause.LEADER_REJOINED, Cause.ASSIGNORS_CHANGED]
        with pytest.raises(ValueError, match="no assignor is called 'best'"):
            sim.offer("m1", ["best"])


@pytest.mark.parametrize(("blocks", "why"), [(False, "sync timeout"), (True, "session timeout")])
def test_a_leader_that_computes_for_too_long(blocks: bool, why: str) -> None:
    with settled("m1", "m2", "m3") as sim:
        leader = sim.leader()
        assert leader is not None
        leader.options.assign_ms, leader.options.assign_blocks = 20_000, blocks
        sim.member("m4", session_timeout_ms=6_000, rebalance_timeout_ms=8_000)
        sim.run(30_000)
        removed = [removal for account in sim.begun for removal in account.removed]
        assert [(removal.client_id, removal.why) for removal in removed] == [(leader.name, why)]


# ---- the scenarios and their labels


def test_scenarios_are_many_of_all_kinds_and_the_same_every_time() -> None:
    listed = scenarios(330)
    assert listed[:40] == scenarios(40)
    assert [scenario.name for scenario in scenarios(330, 1)] == [scenario.name for scenario in listed]
    assert scenarios(330, 1) != listed
    assert len({scenario.name for scenario in listed}) == 330
    assert set(ACTS) == set(Cause) - NOT_PLAYED
    aimed = Counter(cause for scenario in listed for cause in scenario.aims)
    assert min(aimed.values()) >= 20
    shapes = [shape for scenario in listed for shape in scenario.shapes]
    sizes = {shape.size for shape in shapes}
    assert (min(sizes), max(sizes)) == (1, 200)
    assert {name for shape in shapes for name in shape.assignors} >= {"range", "roundrobin", "sticky"}
    assert {name for shape in shapes for name in shape.clients} >= {
        "java",
        "librdkafka",
        "aiokafka",
        "kafkajs",
        "oldest",
    }
    assert max(len(scenario.shapes) for scenario in listed) == 4


def test_a_scenario_is_the_same_frames_every_time() -> None:
    scenario = scenarios(6)[5]
    rows = []
    for _ in range(2):
        sim, recorder = play(scenario)
        rows.append((recorder.rows(), log_rows(sim)))
    assert rows[0] == rows[1]


def test_every_cause_and_every_rule_occurs() -> None:
    causes: Counter[Cause] = Counter()
    rules: Counter[str] = Counter()
    for scenario in scenarios(90):
        sim, _ = play(scenario)
        labels = labels_of(sim)
        assert len(labels) == len(sim.begun)
        causes.update(label.cause for label in labels)
        rules.update(label.rule for label in labels)
        for label in labels:
            if label.ended_ms is not None:
                assert label.started_ms <= (label.joined_ms or label.started_ms) <= label.ended_ms
    assert set(causes) == set(Cause) - NOT_PLAYED
    torn = {"forgotten", "metadata"}  # they need a log that a crash has torn
    assert set(rules) >= set(RULES) - torn - {"member refused", "cut off"}


def test_labels_name_the_return_of_who_had_missed_the_join() -> None:
    scenario = Scenario(name="late", seed=5, aims=(), shapes=(Shape(size=3),), acts=())
    sim, _ = play(scenario)
    with sim:
        slow = sim.member("slow", session_timeout_ms=60_000, rebalance_timeout_ms=8_000)
        sim.run_until(sim.is_settled)
        sim.pause("slow", 15_000)
        sim.member("other", rebalance_timeout_ms=8_000)
        sim.run(10_000)
        lost = slow.member.member_id
        assert [removal.why for removal in sim.begun[-1].removed] == ["rebalance timeout"]
        sim.run_until(sim.is_settled)
        label = labels_of(sim)[-1]
        assert (label.cause, label.rule) == (Cause.REBALANCE_TIMEOUT, "missed the join")
        assert (label.client_host, label.trigger) == (slow.host, "NEW_MEMBER")
        assert label.member_id not in ("", lost)
        sim.restart("slow")
        sim.run(20)
        sim.run_until(sim.is_settled)
        assert labels_of(sim)[-1].cause is not Cause.REBALANCE_TIMEOUT, "a new process has missed nothing"


# ---- the scorer can fail


def as_inferred(label: Label) -> Rebalance:
    """An explanation that is right in everything."""
    times = label.joins[-2:]
    start, joined, ended = label.started_ms, label.joined_ms, label.ended_ms
    return Rebalance(
        group_id=label.group_id,
        number=label.number,
        generation_id=label.generation_id,
        started_ns=start * MS,
        joined_ns=None if joined is None else joined * MS,
        ended_ns=None if ended is None else ended * MS,
        outcome=label.outcome,
        cause=label.cause,
        member_id=label.member_id,
        client_id=label.client_id,
        client_host=label.client_host,
        instance_id=label.instance_id,
        reason=label.reason,
        detail="",
        confidence=1.0,
        evidence=[],
        assignor=label.assignor,
        leader_id=label.leader_id,
        duration_ms=None if ended is None else float(ended - start),
        joining_ms=None if joined is None else float(joined - start),
        last_member_id=times[-1][0] if times else None,
        late_ms=float(times[1][1] - times[0][1]) if len(times) == 2 else None,
        removed=[RemovedMember(member_id, None, None, why) for member_id, why in label.removed],
    )


@cache
def known() -> tuple[list[Label], str]:
    """The rebalances of a group that has a bit of everything."""
    acts = next(scenario for scenario in scenarios(330) if scenario.name == "overlap-3")
    sim, _ = play(acts)
    return labels_of(sim), acts.name


def judged(guesses: list[Rebalance]) -> Score:
    labels, name = known()
    summary = GroupSummary("group", "wire", "consumer", 0, 0, 0, 0, 0, 0, 0, 0.0, [])
    score = Score()
    history = GroupHistory(summary, rebalances=guesses)
    score.add(compare(name, labels, {"group": history}, Tolerance(5, 1_000), lambda _: True))
    return score


def right() -> list[Rebalance]:
    return [as_inferred(label) for label in known()[0]]


def test_what_is_right_scores_full() -> None:
    score = judged(right())
    assert score.true == len(known()[0]) >= 4
    assert (score.agreement, score.missed, score.invented, score.wrong) == (1.0, 0, 0, [])
    assert all(good == of for good, of in score.checks.values())
    assert all(score.checks[name][1] for name in CHECKS), "every check is put to use"


PLANTED: dict[str, dict[str, Any]] = {
    "cause": {"cause": Cause.UNKNOWN},
    "generation": {"generation_id": 77},
    "member": {"member_id": "somebody-else"},
    "client": {"client_id": None},
    "host": {"client_host": "10.9.9.9"},
    "reason": {"reason": "because"},
    "assignor": {"assignor": "best"},
    "leader": {"leader_id": None},
    "last joiner": {"last_member_id": "somebody-else"},
    "how late": {"late_ms": 123_456.0},
    "joining time": {"joining_ms": None},
    "duration": {"duration_ms": 1e9},
    "removed": {"removed": [RemovedMember("nobody", None, None, "left")]},
    "outcome": {"outcome": "open"},
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_planted_mistake_is_found_where_it_was_planted(name: str) -> None:
    guesses = [dataclasses.replace(guess, **PLANTED[name]) for guess in right()]
    score = judged(guesses)
    good, of = score.checks[name]
    assert of > 0
    assert good == 0, "each of them is wrong"
    assert all(other == count for check, (other, count) in score.checks.items() if check != name)
    assert score.agreement == (0.0 if name == "cause" else 1.0)


def test_one_wrong_cause_is_one_wrong_cause() -> None:
    for place in range(len(known()[0])):
        guesses = right()
        truth = guesses[place].cause
        other = Cause.MEMBER_LEFT if truth != Cause.MEMBER_LEFT else Cause.NEW_MEMBER
        guesses[place].cause = other
        score = judged(guesses)
        assert score.right == score.true - 1
        assert (score.without_new_members < 1) is (truth != Cause.NEW_MEMBER)
        assert score.matrix[Cause(truth).name, other.name] == 1
        assert score.worst() == [("overlap-3", 1)]


def test_what_is_left_out_is_missed_and_costs() -> None:
    for place in range(len(known()[0])):
        guesses = right()
        del guesses[place]
        score = judged(guesses)
        assert (score.missed, score.invented, score.right) == (1, 0, score.true - 1)
        assert score.agreement < 1
    nothing = judged([])
    assert (nothing.missed, nothing.agreement) == (nothing.true, 0.0)


def test_what_is_made_up_is_invented_and_costs() -> None:
    first = right()[0]
    far = dataclasses.replace(
        first, generation_id=99, started_ns=first.started_ns + 10**15, joined_ns=None, ended_ns=None
    )
    double = right()
    score = judged([*right(), far])
    assert (score.missed, score.invented, score.right) == (0, 1, score.true)
    assert score.agreement < 1
    score = judged(sorted([*double, right()[1]], key=lambda guess: guess.started_ns))
    assert score.invented == 1, "the same one listed twice"


def test_another_time_is_another_rebalance() -> None:
    labels, _ = known()
    hour = 3_600_000 * MS
    later = [
        dataclasses.replace(
            guess,
            started_ns=guess.started_ns + hour,
            joined_ns=None if guess.joined_ns is None else guess.joined_ns + hour,
            ended_ns=None if guess.ended_ns is None else guess.ended_ns + hour,
        )
        for guess in right()
    ]
    assert all(truth is None or guess is None for truth, guess in match(labels, later))
    score = judged(later)
    assert (score.missed, score.invented, score.agreement) == (score.true, score.true, 0.0)


def test_groups_are_not_mixed_up() -> None:
    guesses = [dataclasses.replace(guess, group_id="another") for guess in right()]
    labels, name = known()
    summary = GroupSummary("another", "wire", "consumer", 0, 0, 0, 0, 0, 0, 0, 0.0, [])
    score = Score()
    history = GroupHistory(summary, rebalances=guesses)
    score.add(compare(name, labels, {"another": history}, Tolerance(5, 1_000), lambda _: True))
    assert (score.missed, score.invented, score.right) == (len(labels), len(guesses), 0)


# ---- the pipeline agrees


@cache
def measured(origin: Origin) -> tuple[Score, list[Outcome]]:
    score = Score()
    outcomes = []
    for scenario in SUBSET if origin == "wire" else SUBSET[::2]:
        outcome = run(scenario, origin)
        score.add(outcome.comparisons)
        outcomes.append(outcome)
    return score, outcomes


def complaints(score: Score) -> str:
    return "\n".join(f"{comparison.scenario} in {comparison.group_id}: {comparison.cell}" for comparison in score.wrong)


def test_causes_from_the_wire_alone_agree_with_the_truth() -> None:
    score, outcomes = measured("wire")
    assert score.true > 100
    assert score.agreement >= 0.98, complaints(score)
    assert score.without_new_members >= 0.96, complaints(score)
    assert score.missed + score.invented <= score.true // 100, complaints(score)
    lost = {loss.what for outcome in outcomes for loss in outcome.losses}
    assert lost <= {"its request was not seen"}, "a fault of the network sends some responses twice"
    hidden = sum(outcome.hidden for outcome in outcomes)
    assert hidden <= 3, "only a last member that falls silent leaves no frame"


@pytest.mark.parametrize(
    ("check", "least"),
    [
        ("generation", 0.99),
        ("assignor", 0.99),
        ("leader", 0.99),
        ("joining time", 0.98),
        ("duration", 0.98),
        ("member", 0.97),
        ("client", 0.97),
        ("host", 0.97),
        ("reason", 0.97),
        ("last joiner", 0.97),
        ("how late", 0.97),
        ("outcome", 0.97),
        ("removed", 0.95),
    ],
)
def test_all_other_columns_from_the_wire_agree_too(check: str, least: float) -> None:
    score, _ = measured("wire")
    good, of = score.checks[check]
    assert of > 20
    assert good / of >= least, f"{good} of {of}"


def test_causes_from_the_log_agree_where_records_show_them() -> None:
    score, outcomes = measured("log")
    assert score.true > 40
    assert score.agreement >= 0.95, complaints(score)
    assert sum(outcome.hidden for outcome in outcomes) > 0, "an interrupted rebalance leaves no record"


def test_a_scenario_that_fails_says_so() -> None:
    broken = dataclasses.replace(scenarios(1)[0], latency_ms=(5, 1))
    name, comparisons, _, _, error = comparisons_of(broken, "wire")
    assert (name, comparisons) == (broken.name, [])
    assert error is not None
    assert "ValueError" in error


# ---- what it says


def test_the_matrix_shows_what_is_called_what() -> None:
    guesses = right()
    guesses[0].cause = Cause.UNKNOWN
    lines = report.matrix(judged(guesses))
    assert "unknown" in lines[0]
    row = next(line for line in lines if line.startswith(f"| {known()[0][0].cause.value} |"))
    assert " 1 " in row
    assert len({line.count("|") for line in lines}) == 1


def test_the_rules_have_the_same_names_on_both_sides() -> None:
    assert {rule.name for rule in WIRE_RULES} - {UNKNOWN} == set(RULES)


def test_each_rule_has_its_row_in_the_report() -> None:
    score, _ = measured("wire")
    lines = report.rule_matrix(score)[2:]
    assert [line.split(" | ")[0] for line in lines] == [f"| {name}" for name in RULES]
    found = sum(count for (rule, name, _), count in score.rules.items() if rule == name)
    assert found / score.true >= 0.97


def test_the_page_of_causes_is_up_to_date() -> None:
    assert causes.PAGE.read_text("utf-8") == causes.page(causes.measured()), "run python -m tests.truth.causes"


def test_the_page_gets_its_accuracy_and_keeps_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = report.accuracy(judged(right()), 1, judged(right()), 2)
    monkeypatch.setattr(causes, "PAGE", tmp_path / "causes.md")
    causes.write(text)
    assert causes.measured() == text
    causes.write(causes.measured())
    assert causes.PAGE.read_text("utf-8") == causes.page(text)
    assert "| it was" in text
    assert "1 have left no frame behind them" in text
    assert "2 have left no record at all" in text


def test_the_command_line_measures_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenarios", "4", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "4 scenarios" in out
    assert "| it was" in out
    assert main(["--scenarios", "4", "--jobs", "1", "--from", "log", "--only", "new_member"]) == 0
    assert "What records cannot show" in capsys.readouterr().out
    assert main(["--show", "member_left-0"]) == 0
    out = capsys.readouterr().out
    assert "was      #1 NEW_MEMBER" in out
    assert "inferred #1 NEW_MEMBER" in out
    with pytest.raises(SystemExit):
        main(["--show", "no such one"])


def test_a_failed_scenario_leaves_the_page_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured_in_part(chosen: list[Scenario], origin: Origin, jobs: int) -> tuple[Score, int, int, Any]:
        return judged(right()), 0, 1, [("broken", "why")] if origin == "log" else []

    written: list[str] = []
    monkeypatch.setattr("tests.truth.__main__.measure", measured_in_part)
    monkeypatch.setattr("tests.truth.__main__.causes.write", written.append)
    assert main(["--scenarios", "1", "--write"]) == 1
    assert written == []
    assert "FAILED broken" in capsys.readouterr().out

"""Fault scripts: what each rule strikes, in which order, and what a wrong script is told."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator.fault_injection import (
    ACTIONS,
    ActionName,
    Fault,
    FaultedExchange,
    Faults,
    Tally,
    help_lines,
)
from kcoord_wire.kernel.settings import SettingsError, declarations
from kcoord_wire.messages import HeartbeatResponse
from kcoord_wire.protocol.api_keys import API_NAMES
from kcoord_wire.protocol.error_codes import ErrorCode

KEYS = {name: key for key, name in API_NAMES.items()}
OK = HeartbeatResponse()
BEAT = kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="worker-7-uuid")


NAMES = {uuid.UUID(int=7): "orders"}


class Exchange(FaultedExchange):
    """Answers at once, and notes what it is asked to do; by default, of a Heartbeat that meets no fault."""

    def __init__(self, message: Any = BEAT, version: int = 4, client: str = "c", **faults: list[Fault]) -> None:
        super().__init__(KEYS[type(message).__name__.removesuffix("Request")], message, version, client, NAMES.get)
        self.faults = faults
        self.happened: list[Any] = []

    def decide(self, on: str) -> tuple[Fault, ...]:
        return tuple(self.faults.get(on, ()))

    def later(self, delay_ms: int, step: Callable[[], None]) -> None:
        self.happened.append(delay_ms)
        step()

    def submit(self, copies: int) -> None:
        self.happened.append(copies)
        self.respond(OK)

    def answer(self, response: Any, copies: int) -> None:
        self.happened.append((response, copies))

    def disconnect(self) -> None:
        self.happened.append("disconnect")


def decide(
    faults: Faults, message: Any = BEAT, on: str = "request", version: int = 4, client: str = "c", at: int = 0
) -> tuple[Fault, ...]:
    return faults.decide(on, Exchange(message, version, client), at)


def strikes(faults: Faults, times: int, **how: Any) -> list[int]:
    """The numbers, from 1, of those of so many like requests that are struck."""
    return [number for number in range(1, times + 1) if decide(faults, **how)]


def test_the_actions_are_those_that_types_allow() -> None:
    assert tuple(ACTIONS) == get_args(ActionName)
    assert len({action.rank for action in ACTIONS.values()}) == len(ACTIONS)
    assert all(bool(action.parameter) == bool(action.drawn) for action in ACTIONS.values())


def test_a_rule_strikes_its_direction_alone() -> None:
    fault = Fault("drop")
    faults = Faults([fault])
    assert decide(faults) == (fault,)
    assert decide(faults, on="response") == ()


@pytest.mark.parametrize(
    ("when", "struck"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"after": 3}, [4, 5, 6, 7, 8, 9]),
        ({"count": 2}, [1, 2]),
        ({"every": 3}, [3, 6, 9]),
        ({"after": 1, "every": 2, "count": 3}, [3, 5, 7]),
        ({"nth": 3}, [3]),
        ({"nth": "2-4"}, [2, 3, 4]),
        ({"nth": "8+"}, [8, 9]),
    ],
)
def test_counting(when: dict[str, Any], struck: list[int]) -> None:
    faults = Faults([Fault("drop", **when)])
    assert strikes(faults, 9) == struck
    assert bool(faults) is (when.get("count") is None and when.get("nth") not in (3, "2-4"))


def test_rules_strike_between_their_times() -> None:
    faults = Faults([Fault("drop", from_ms=100, until_ms=200)])
    assert [at for at in (0, 99, 100, 199) if decide(faults, at=at)] == [100, 199]
    assert faults
    assert not decide(faults, at=200)
    assert not faults


def test_rules_are_removed_by_number_or_by_identity() -> None:
    first, twin, other = Fault("drop"), Fault("drop"), Fault("drop", api="Heartbeat")
    faults = Faults([first, twin, other])
    faults.remove(twin)
    assert [tally.fault is first for tally in faults.tallies()] == [True, False]
    faults.remove_number(1)
    with pytest.raises(KeyError, match="no fault 1"):
        faults.remove_number(1)
    faults.add(first)
    assert [tally.number for tally in faults.tallies()] == [3, 4]


def test_only_what_matches_counts() -> None:
    faults = Faults([Fault("drop", group="g", after=1)])
    assert strikes(faults, 2, message=kw.HeartbeatRequest(group_id="other")) == []
    assert strikes(faults, 3) == [2, 3]
    assert faults.tallies() == [Tally(Fault("drop", group="g", after=1), matches=3, hits=2, number=1)]


@pytest.mark.parametrize(
    "message",
    [
        kw.JoinGroupRequest(group_id="g"),
        kw.OffsetCommitRequest(group_id="g"),
        kw.OffsetFetchRequest(group_id="g"),
        kw.OffsetFetchRequest(
            groups=[kw.OffsetFetchRequestGroup(group_id="x"), kw.OffsetFetchRequestGroup(group_id="g")]
        ),
        kw.DescribeGroupsRequest(groups=["x", "g"]),
        kw.DeleteGroupsRequest(groups_names=["g"]),
        kw.ConsumerGroupDescribeRequest(group_ids=["x", "g"]),
        kw.OffsetDeleteRequest(group_id="g"),
        kw.FindCoordinatorRequest(key="g"),
        kw.FindCoordinatorRequest(coordinator_keys=["x", "g"]),
    ],
)
def test_the_group_is_found_wherever_a_request_names_it(message: Any) -> None:
    assert decide(Faults([Fault("drop", group="g")]), message)
    assert not decide(Faults([Fault("drop", group="y")]), message)
    assert not decide(Faults([Fault("drop", group="g")]), kw.MetadataRequest())


@pytest.mark.parametrize(
    ("message", "client"),
    [
        (BEAT, "c"),
        (kw.JoinGroupRequest(), "worker-7"),
        (kw.HeartbeatRequest(member_id="x", group_instance_id="worker-7"), "c"),
        (kw.LeaveGroupRequest(members=[kw.LeaveGroupRequestMemberIdentity(member_id="worker-7-uuid")]), "c"),
    ],
)
def test_a_member_matches_by_any_of_its_ids(message: Any, client: str) -> None:
    assert decide(Faults([Fault("drop", member="worker-7")]), message, client=client)
    assert not decide(Faults([Fault("drop", member="worker-8")]), message, client=client)


def test_api_client_and_versions() -> None:
    faults = Faults([Fault("drop", api="Heartbeat", client_id="c", versions="2-4")])
    assert decide(faults)
    assert not decide(faults, client="c2")
    assert [version for version in range(6) if decide(faults, version=version)] == [2, 3, 4]
    assert not decide(faults, kw.JoinGroupRequest())


TOPIC = uuid.UUID(int=7)


@pytest.mark.parametrize(
    "message",
    [
        kw.OffsetCommitRequest(
            topics=[
                kw.OffsetCommitRequestTopic(
                    name="orders", partitions=[kw.OffsetCommitRequestPartition(partition_index=3)]
                )
            ]
        ),
        kw.FetchRequest(
            topics=[kw.FetchRequestFetchTopic(topic_id=TOPIC, partitions=[kw.FetchRequestFetchPartition(partition=3)])]
        ),
        kw.AddPartitionsToTxnRequest(
            v3_and_below_topics=[kw.AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name="orders", partitions=[1, 3])]
        ),
    ],
)
def test_topic_and_partition(message: Any) -> None:
    for limits in ({"topic": "orders"}, {"partition": 3}, {"topic": "orders", "partition": 3}):
        assert decide(Faults([Fault("drop", **limits)]), message)
    for limits in ({"topic": "order"}, {"partition": 2}, {"topic": "orders", "partition": 2}):
        assert not decide(Faults([Fault("drop", **limits)]), message)
    assert not decide(Faults([Fault("drop", topic="orders")]))


def test_transactional_id() -> None:
    faults = Faults([Fault("drop", transactional_id="pay-1")])
    assert decide(faults, kw.EndTxnRequest(transactional_id="pay-1"))
    assert decide(faults, kw.DescribeTransactionsRequest(transactional_ids=["pay-0", "pay-1"]))
    assert decide(faults, kw.FindCoordinatorRequest(key="pay-1", key_type=1))
    assert not decide(faults, kw.FindCoordinatorRequest(key="pay-1"))
    assert not decide(faults, kw.ProduceRequest(transactional_id=None))


def test_the_page_has_the_rows() -> None:
    page = Path("docs/coordinator.md").read_text("utf-8")
    for name, action in ACTIONS.items():
        assert f"| `{name}` | {action.on_request} | {action.on_response} |" in page
    lines = help_lines()
    for key, declared in declarations(Fault).items():
        assert f"| `{key}` | {declared.about} |" in page
        assert any(line.split() == [key, *declared.about.split()] for line in lines)


@pytest.mark.parametrize(
    ("text", "versions"), [("3", range(3, 4)), (3, range(3, 4)), ("0-5", range(6)), ("6+", range(6, 1 << 31))]
)
def test_versions(text: str | int, versions: range) -> None:
    assert Fault("drop", versions=text).versions == versions
    assert Fault("drop", versions=versions).versions == versions


def test_add_remove_and_clear_while_it_runs() -> None:
    faults = Faults()
    assert not faults
    lost, late = Fault("drop", api="Heartbeat"), Fault("delay", delay_ms=9)
    faults.add(lost, late)
    assert decide(faults) == (lost, late)
    faults.remove(lost)
    assert decide(faults) == (late,)
    with pytest.raises(ValueError, match="no such rule"):
        faults.remove(lost)
    faults.clear()
    assert not faults
    assert not decide(faults)
    assert faults.tallies() == []


def test_a_used_up_rule_leaves_its_tally() -> None:
    faults = Faults([Fault("drop", count=1)])
    assert strikes(faults, 3) == [1]
    assert [(tally.matches, tally.hits) for tally in faults.tallies()] == [(1, 1)]


def test_rules_for_other_apis_cost_a_heartbeat_little() -> None:
    faults = Faults(Fault("drop", api="JoinGroup", group=str(number)) for number in range(10_000))
    start = time.process_time()
    for _ in range(10_000):
        assert not decide(faults)
    assert time.process_time() - start < 2  # typically 0.01; a walk over the rules takes a minute


# ---- files

SCRIPT = """
[[fault]]
api = "Heartbeat"
action = "drop"
member = "worker-7"
after = 2
count = 3

[[fault]]
api = "OffsetCommit"
on = "response"
action = "error"
error = "NOT_COORDINATOR"
versions = "0-8"
from_ms = 100
until_ms = 900
"""


def test_from_file(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(SCRIPT, "utf-8")
    assert [tally.fault for tally in Faults.from_file(path).tallies()] == [
        Fault("drop", api="Heartbeat", member="worker-7", after=2, count=3),
        Fault("error", "response", "OffsetCommit", versions=range(9), from_ms=100, until_ms=900, error=16),
    ]
    path.write_text("")
    assert not Faults.from_file(str(path))


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("[[fault]]\naction = 'drop'\n[[fault]]\naction = 'drop'\nmembr = 'x'", "membr",
         r"fault\[2\].membr: unknown; did you mean member\?"),
        ("[[faults]]\naction = 'drop'", "faults", r"faults: unknown; there can be \[\[fault\]\]"),
        ("fault = 3", "fault", r"fault: rules are written \[\[fault\]\]"),
        ("[fault]\naction = 'drop'", "fault", r"rules are written \[\[fault\]\]"),
        ("[[fault]]\napi = 'Heartbeat'", "action", r"fault\[1\].action: is missing"),
        ("[[fault]]\naction = 'dorp'", "action", "'dorp' is unknown; did you mean drop"),
        ("[[fault]]\naction = 3", "action", "must be text, not 3"),
        ("[[fault]]\naction = 'drop'\non = 'reply'", "on", "'reply' is unknown; there are request, response"),
        ("[[fault]]\naction = 'drop'\napi = 'Hartbeat'", "api", "did you mean Heartbeat?"),
        ("[[fault]]\naction = 'drop'\napi = 'joingroup'", "api", "did you mean JoinGroup?"),
        ("[[fault]]\naction = 'drop'\ngroup = 1", "group", "must be text, not 1"),
        ("[[fault]]\naction = 'drop'\ncount = 0", "count", "must be a whole number from 1 up, not 0"),
        ("[[fault]]\naction = 'drop'\nevery = true", "every", "must be a whole number from 1 up, not True"),
        ("[[fault]]\naction = 'drop'\nafter = -1", "after", "must be a whole number from 0 up"),
        ("[[fault]]\naction = 'drop'\nfrom_ms = 1.5", "from_ms", "not 1.5"),
        ("[[fault]]\naction = 'drop'\nfrom_ms = 5\nuntil_ms = 5", "until_ms", "must be after from_ms"),
        ("[[fault]]\naction = 'delay'", "delay_ms", "goes with action = 'delay'"),
        ("[[fault]]\naction = 'drop'\ndelay_ms = 5", "delay_ms", "goes with action = 'delay'"),
        ("[[fault]]\naction = 'error'", "error", "goes with action = 'error'"),
        ("[[fault]]\naction = 'drop'\nerror = 16", "error", "goes with action = 'error'"),
        ("[[fault]]\naction = 'error'\nerror = 'NOT_CORDINATOR'", "error", "did you mean NOT_COORDINATOR?"),
        ("[[fault]]\naction = 'error'\nerror = 9999", "error", "9999 is not an error code"),
        ("[[fault]]\naction = 'error'\nerror = 0", "error", "NONE is not an error"),
        ("[[fault]]\naction = 'error'\nerror = [1]", "error", "is not an error code"),
        ("[[fault]]\naction = 'drop'\nversions = '5-2'", "versions", r"0-5 or 6\+, not '5-2'"),
        ("[[fault]]\naction = 'drop'\nversions = '1-3+'", "versions", "must be written"),
        ("[[fault]]\naction = 'drop'\nversions = true", "versions", "6\\+, not True"),
        ("[[fault]]\naction = 'drop'\ntopic = 3", "topic", "must be text, not 3"),
        ("[[fault]]\naction = 'drop'\npartition = -1", "partition", "must be a whole number from 0 up"),
        ("[[fault]]\naction = 'drop'\nnth = '3,4'", "nth", "must be written"),
        ("[[fault]]\naction = 'drop'\nnth = 3\ncount = 1", "nth", "cannot be given together with count"),
        ("[[fault]", None, "at line 1"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_reported_with_its_place(tmp_path: Path, text: str, key: str | None, message: str) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=message) as caught:
        Faults.from_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert key is None or caught.value.where.rpartition(".")[2].rpartition(": ")[2] == key


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="utf-8"):
        Faults.from_file(path)


# ---- A request and its response past the faults: what happens, in which order, on a host that notes it down

REFUSED = HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR)
DELAY, DROP, TWICE, CLOSE = Fault("delay", delay_ms=7), Fault("drop"), Fault("duplicate"), Fault("disconnect")
ERROR = Fault("error", error="NOT_COORDINATOR")


@pytest.mark.parametrize(
    ("faults", "happens"),
    [
        ({}, [1, (OK, 1)]),
        ({"request": [DELAY]}, [7, 1, (OK, 1)]),
        ({"request": [DELAY, DELAY]}, [14, 1, (OK, 1)]),
        ({"request": [TWICE, TWICE]}, [3, (OK, 1)]),
        ({"request": [DROP]}, [(None, 0)]),
        ({"request": [ERROR], "response": [DROP]}, [(REFUSED, 1)]),
        ({"request": [ERROR, Fault("error", error=27)]}, [(REFUSED, 1)]),
        ({"request": [DROP, CLOSE, DELAY]}, [7, "disconnect"]),
        ({"response": [TWICE, DELAY]}, [1, 7, (OK, 2)]),
        ({"response": [ERROR, DROP]}, [1, (None, 0)]),
        ({"response": [TWICE, ERROR]}, [1, (REFUSED, 1)]),
        ({"response": [CLOSE]}, [1, "disconnect"]),
    ],
)
def test_faults_apply_in_their_order(faults: dict[str, list[Fault]], happens: list[Any]) -> None:
    exchange = Exchange(**faults)  # type: ignore[arg-type]
    exchange.receive()
    assert exchange.happened == happens

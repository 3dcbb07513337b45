"""The transaction machine: producers and epochs, what is refused, the end of a transaction, restarts."""

from __future__ import annotations

from itertools import count

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import IllegalMoveError, Load, Request
from kcoord_wire.coordinator.transactions import machine as module
from kcoord_wire.coordinator.transactions.machine import TransactionMachine
from kcoord_wire.coordinator.transactions.transaction import (
    NO_PRODUCER,
    TRANSITIONS,
    Move,
    State,
    Transaction,
    transaction_record,
)
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.scripted import Topics
from tests.support.transactions import TransactionScript


@pytest.fixture
def script() -> TransactionScript:
    return TransactionScript()


@pytest.fixture
def producer(script: TransactionScript) -> tuple[int, int]:
    """Id and epoch of the first producer of the id x."""
    return script.producer()


def test_a_producer_gets_an_id_and_epochs_that_rise(script: TransactionScript) -> None:
    first, second = script.producer(), script.producer()
    assert second == (first[0], first[1] + 1) == (first[0], 1)
    assert script.producer("y")[0] != first[0]


def test_a_producer_without_transactions_needs_no_log() -> None:
    machine = TransactionMachine(Topics(), len, lambda now: now)
    request = Request(1, m.InitProducerIdRequest(transactional_id=None), 5)
    (reply,) = machine.handle(request, 5)
    assert (reply.message.error_code, reply.message.producer_id, reply.message.producer_epoch) == (0, 5, 0)
    request = Request(2, m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1), 5)
    (reply,) = machine.handle(request, 5)
    assert reply.message.error_code == E.COORDINATOR_LOAD_IN_PROGRESS


def test_a_refusal_waits_for_what_it_depends_on() -> None:
    machine = TransactionMachine(Topics(), len, lambda now: now)
    machine.handle(Load([]), 5)
    wanted = {"transactional_id": "x", "transaction_timeout_ms": 1_000}
    machine.handle(Request(1, m.InitProducerIdRequest(**wanted), 5), 5)
    other = m.InitProducerIdRequest(**wanted, producer_id=99, producer_epoch=0)
    (reply,) = machine.handle(Request(2, other, 5), 5)
    assert (reply.message.error_code, reply.after) == (E.PRODUCER_FENCED, 1)


@pytest.mark.parametrize(
    ("timeout", "had", "name", "error"),
    [
        (900_001, (-1, -1), "x", E.INVALID_TRANSACTION_TIMEOUT),
        (0, (-1, -1), "x", E.INVALID_TRANSACTION_TIMEOUT),
        (1, (-1, -1), "", E.INVALID_REQUEST),
        (1, (5, -1), "x", E.INVALID_REQUEST),
        (1, (-1, 5), "x", E.INVALID_REQUEST),
    ],
)
def test_a_wrong_initialisation_is_refused(timeout: int, had: tuple[int, int], name: str, error: E) -> None:
    assert TransactionScript().init(name, timeout=timeout, had=had).error_code == error


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_once_its_markers_are_written(
    script: TransactionScript, producer: tuple[int, int], commit: bool
) -> None:
    assert script.add(producer, ("orders", 1), ("payments", 0)) == [0, 0]
    assert script.state() == "Ongoing"
    assert script.end(producer, commit=commit).error_code == 0
    assert script.add(producer) == [E.CONCURRENT_TRANSACTIONS]
    assert script.end(producer, commit=commit).error_code == E.CONCURRENT_TRANSACTIONS
    assert script.init().error_code == E.CONCURRENT_TRANSACTIONS
    marker = script.write_markers().marker
    assert (marker.producer_id, marker.producer_epoch) == producer
    assert (marker.transaction_result, len(marker.topics)) == (commit, 2)
    assert script.state() == ("CompleteCommit" if commit else "CompleteAbort")
    assert script.end(producer, commit=commit).error_code == 0, "the answer may have been lost"
    assert script.end(producer, commit=not commit).error_code == E.INVALID_TXN_STATE


def test_version_2_raises_the_epoch_at_each_end(script: TransactionScript, producer: tuple[int, int]) -> None:
    assert script.batch_add(producer, ("orders", 0)) == [0]
    answer = script.end(producer, version=5)
    assert (answer.producer_id, answer.producer_epoch) == (producer[0], 1)
    marker = script.write_markers().marker
    assert (marker.producer_epoch, marker.transaction_version) == (1, 2)
    again = script.end(producer, version=5)
    assert (again.error_code, again.producer_epoch) == (0, 1), "the answer may have been lost"
    assert script.batch_add(producer, ("orders", 0)) == [E.PRODUCER_FENCED]
    assert script.batch_add((producer[0], 1), ("orders", 0)) == [0]


def test_version_2_may_abort_a_transaction_without_partitions(
    script: TransactionScript, producer: tuple[int, int]
) -> None:
    assert script.end(producer, commit=True, version=5).error_code == E.INVALID_TXN_STATE
    assert script.end(producer, commit=False, version=4).error_code == E.INVALID_TXN_STATE
    answer = script.end(producer, commit=False, version=5)
    assert (answer.error_code, answer.producer_epoch) == (0, 1)
    assert script.write_markers().marker.topics == []
    assert script.end((producer[0], 1), commit=False, version=5).producer_epoch == 2


def test_a_new_producer_aborts_the_transaction_and_fences(script: TransactionScript) -> None:
    old = script.producer()
    script.add(old)
    assert script.init().error_code == E.CONCURRENT_TRANSACTIONS
    assert script.add(old) == script.add((9, 9)) == [E.CONCURRENT_TRANSACTIONS], "markers come first"
    assert script.init(had=(9, 9)).error_code == E.CONCURRENT_TRANSACTIONS
    assert script.end((9, 9), version=5).error_code == E.CONCURRENT_TRANSACTIONS
    assert script.end(old, version=4).error_code == E.PRODUCER_FENCED
    assert script.batch_add(old, ("orders", 0), verify=True) == [E.PRODUCER_FENCED]
    marker = script.write_markers().marker
    assert (marker.producer_epoch > old[1], marker.transaction_result) == (True, False)
    new = script.producer()
    assert new[1] > marker.producer_epoch
    assert script.add(old) == [E.PRODUCER_FENCED]
    assert script.add(old, version=1) == [E.INVALID_PRODUCER_EPOCH]
    assert script.end(old).error_code == E.PRODUCER_FENCED
    assert script.init(had=old).error_code == E.PRODUCER_FENCED
    assert script.init(had=old, version=3).error_code == E.INVALID_PRODUCER_EPOCH


def test_a_producer_may_raise_its_own_epoch(script: TransactionScript) -> None:
    had = script.producer()
    raised = script.init(had=had)
    assert (raised.producer_id, raised.producer_epoch) == (had[0], had[1] + 1)
    repeated = script.init(had=had)
    assert (repeated.producer_id, repeated.producer_epoch) == (had[0], had[1] + 1)
    assert script.init(had=(had[0] + 9, 0)).error_code == E.PRODUCER_FENCED


def test_an_open_transaction_is_aborted_after_its_timeout(script: TransactionScript, producer: tuple[int, int]) -> None:
    script.add(producer)
    script.wait(59_999)
    assert script.add(producer, ("orders", 3)) == [0]
    script.wait(1)
    assert script.state() == "PrepareAbort"
    marker = script.write_markers().marker
    assert [topic.partition_indexes for topic in marker.topics] == [[0, 3]]
    assert script.add(producer) == [E.PRODUCER_FENCED]
    script.wait(3_600_000)
    assert script.markers == []


@pytest.mark.parametrize("commit", [True, False])
def test_after_the_timeout_the_end_of_version_0_is_fenced(
    script: TransactionScript, producer: tuple[int, int], commit: bool
) -> None:
    script.add(producer)
    script.wait(60_000)
    script.write_markers()
    assert script.end(producer, commit=commit, version=4).error_code == E.PRODUCER_FENCED
    assert script.end(producer, commit=commit, version=1).error_code == E.INVALID_PRODUCER_EPOCH


def test_the_next_producer_id_waits_for_the_markers(script: TransactionScript) -> None:
    script.producer()
    script.machine.transactions["x"].producer_epoch = 32_766
    last = (script.machine.transactions["x"].producer_id, 32_766)
    script.batch_add(last, ("orders", 0))
    answer = script.end(last, version=5)
    following = (answer.producer_id, answer.producer_epoch)
    assert (following[0] != last[0], following[1]) == (True, 0)
    assert script.batch_add(following, ("orders", 0)) == [E.CONCURRENT_TRANSACTIONS]
    assert script.end(following, commit=False, version=5).error_code == E.CONCURRENT_TRANSACTIONS
    assert script.init(had=following).error_code == E.CONCURRENT_TRANSACTIONS
    script.write_markers()
    assert script.batch_add(following, ("orders", 0)) == [0]


def test_an_ended_transaction_has_no_timeout(script: TransactionScript, producer: tuple[int, int]) -> None:
    script.add(producer)
    script.end(producer)
    script.write_markers()
    script.wait(120_000)
    assert (script.markers, script.state()) == ([], "CompleteCommit")


def test_after_a_restart_transactions_go_on(script: TransactionScript) -> None:
    open_one, decided, ended = (script.producer(name) for name in "abc")
    for name, producer in zip("abc", (open_one, decided, ended), strict=True):
        script.add(producer, name=name)
    script.end(decided, name="b")
    script.end(ended, name="c")
    script.markers.reverse()
    script.write_markers()
    script.wait(59_000)
    script.restart()
    assert [(effect.transactional_id, effect.marker.transaction_result) for effect in script.markers] == [("b", True)]
    assert [script.state(name) for name in "abc"] == ["Ongoing", "PrepareCommit", "CompleteCommit"]
    assert script.write_markers().marker.topics[0].name == "orders"
    script.wait(1_000)
    assert script.state("a") == "PrepareAbort"
    assert script.producer("d")[0] > max(open_one[0], decided[0], ended[0])


def test_partitions_are_added_all_or_none(script: TransactionScript, producer: tuple[int, int]) -> None:
    errors = script.add(producer, ("orders", 0), ("orders", 99), ("nothing", 0))
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == [E.OPERATION_NOT_ATTEMPTED, unknown, unknown]
    assert script.state() == "Empty"


def test_a_brokers_question_changes_nothing(script: TransactionScript, producer: tuple[int, int]) -> None:
    script.add(producer, ("orders", 0))
    wanted = (("orders", 0), ("orders", 1))
    assert script.batch_add(producer, *wanted, verify=True) == [0, E.TRANSACTION_ABORTABLE]
    assert script.batch_add((1, 0), *wanted, verify=True) == [E.INVALID_PRODUCER_ID_MAPPING] * 2
    assert script.batch_add((producer[0], 7), *wanted, verify=True) == [E.PRODUCER_FENCED] * 2
    assert script.batch_add(producer, *wanted, verify=True, name="other") == [E.INVALID_PRODUCER_ID_MAPPING] * 2
    assert script.batch_add(producer, *wanted, verify=True, name="") == [E.INVALID_REQUEST] * 2
    assert script.end(producer).error_code == 0
    assert script.batch_add(producer, *wanted, verify=True) == [E.CONCURRENT_TRANSACTIONS] * 2


def test_the_offsets_of_a_group_are_a_partition_too(script: TransactionScript, producer: tuple[int, int]) -> None:
    request = m.AddOffsetsToTxnRequest(
        transactional_id="x", producer_id=producer[0], producer_epoch=producer[1], group_id="four"
    )
    assert script.ask(request, 3).error_code == 0
    script.end(producer)
    (topic,) = script.write_markers().marker.topics
    assert (topic.name, topic.partition_indexes) == ("__consumer_offsets", [4])


def test_unused_ids_expire_and_open_ones_do_not() -> None:
    script = TransactionScript(transactional_id_expiration_ms=1_000)
    script.producer("idle")
    producer = script.producer("busy")
    script.wait(3_599_500)
    assert script.add(producer, name="busy") == [0]
    script.producer("young")
    script.wait(500)
    answer = script.ask(m.ListTransactionsRequest(), 1)
    assert [each.transactional_id for each in answer.transaction_states] == ["busy", "young"]
    script.restart()
    assert list(script.machine.transactions) == ["busy", "young"]


def test_further_transactional_ids_wait_for_an_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IDS", 2)
    script = TransactionScript(transactional_id_expiration_ms=3_600_000)
    script.producer("a")
    script.producer("b")
    assert script.init("c").error_code == E.POLICY_VIOLATION
    assert script.init("a").error_code == 0, "one that is known goes on"
    assert script.init(None).error_code == 0
    script.wait(7_200_000)
    assert script.init("c").error_code == 0


def test_transactions_are_counted_by_their_outcome(script: TransactionScript) -> None:
    for name in ("committed", "aborted", "fenced", "timed out", "open"):
        producer = script.producer(name)
        script.add(producer, name=name)
        script.add(producer, ("orders", 1), name=name)
        if name in ("committed", "aborted"):
            script.end(producer, commit=name == "committed", name=name)
        elif name == "fenced":
            script.init(name)
        elif name == "timed out":
            script.wait(60_000)
    producer = script.producer("empty")
    assert script.end(producer, commit=False, name="empty", version=5).error_code == 0
    assert script.machine.begun == 5
    assert script.machine.ended == {"committed": 1, "aborted": 1, "fenced": 1, "timed out": 1}


def test_transactions_are_listed_by_state_producer_and_duration(script: TransactionScript) -> None:
    script.producer("idle")
    producer = script.producer("busy")
    script.add(producer, name="busy")
    script.wait(1_000)

    def names(**filters: object) -> list[str]:
        answer = script.ask(m.ListTransactionsRequest(**filters), 2)  # type: ignore[arg-type] # any of its fields
        return [each.transactional_id for each in answer.transaction_states]

    assert names() == ["idle", "busy"]
    assert names(state_filters=["Ongoing", "Nonsense"]) == ["busy"]
    assert script.ask(m.ListTransactionsRequest(state_filters=["No"]), 1).unknown_state_filters == ["No"]
    assert names(producer_id_filters=[producer[0]]) == ["busy"]
    assert names(duration_filter=999) == ["idle", "busy"]  # who has had no transaction counts as the longest
    assert names(duration_filter=1_000) == ["idle"]
    assert names(transactional_id_pattern="b.*") == names(transactional_id_pattern="busy") == ["busy"]
    assert names(transactional_id_pattern="us") == []
    assert names(transactional_id_pattern="") == ["idle", "busy"]
    refused = script.ask(m.ListTransactionsRequest(state_filters=["No"], transactional_id_pattern="(?=a)"), 2)
    assert (refused.error_code, refused.unknown_state_filters) == (E.INVALID_REGULAR_EXPRESSION, [])
    script.now -= 3_000  # a coordinator whose clock is behind that of the former one
    assert names() == ["idle", "busy"]


def test_a_pattern_for_too_many_ids_is_refused(script: TransactionScript) -> None:
    for number in range(3):
        script.producer(str(number) * 10_000)
    refused = script.ask(m.ListTransactionsRequest(transactional_id_pattern="." * 3_000), 2)
    assert refused.error_code == E.POLICY_VIOLATION
    answer = script.ask(m.ListTransactionsRequest(transactional_id_pattern="1.*"), 2)
    assert len(answer.transaction_states) == 1


def test_a_description_has_the_partitions_by_topic(script: TransactionScript, producer: tuple[int, int]) -> None:
    script.add(producer, ("orders", 1), ("payments", 0), ("orders", 2))
    request = m.DescribeTransactionsRequest(transactional_ids=["x", "x", "none", ""])
    found, unknown, empty = script.ask(request, 0).transaction_states
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("orders", [1, 2]), ("payments", [0])]
    assert (found.producer_id, found.producer_epoch, found.transaction_timeout_ms) == (*producer, 60_000)
    assert (unknown.error_code, empty.error_code) == (E.TRANSACTIONAL_ID_NOT_FOUND, E.INVALID_REQUEST)


def test_what_is_shown_is_in_the_log(script: TransactionScript, producer: tuple[int, int]) -> None:
    script.add(producer)
    for message in (m.ListTransactionsRequest(), m.DescribeTransactionsRequest(transactional_ids=["x"])):
        (reply,) = script.do(Request(99, message, 0))
        assert reply.after == script.machine.appended == 2


def test_when_the_log_fails_requests_are_refused(script: TransactionScript, producer: tuple[int, int]) -> None:
    script.resign()
    assert script.add(producer) == [E.NOT_COORDINATOR]
    assert script.end(producer).error_code == E.NOT_COORDINATOR
    assert script.init(None).error_code == 0
    script.restart()
    assert script.add(producer) == [0]


def test_settings_have_kafkas_names() -> None:
    config = GroupConfig.from_properties({"transaction.max.timeout.ms": "5", "transactional.id.expiration.ms": 7})
    assert (config.transaction_max_timeout_ms, config.transactional_id_expiration_ms) == (5, 7)


def test_what_has_another_coordinator_is_read_from_the_log(
    script: TransactionScript, producer: tuple[int, int]
) -> None:
    script.add(producer)
    script.move(1)
    assert script.state() == "Ongoing", "another partition"
    script.move(0)
    assert script.add(producer, ("orders", 1)) == [E.COORDINATOR_LOAD_IN_PROGRESS]
    assert script.init("y").error_code == script.end(producer).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
    assert script.ask(m.ListTransactionsRequest(), 1).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
    assert script.init(None).error_code == 0
    script.wait(30_000)
    script.load(0)
    assert script.add(producer, ("orders", 1)) == [0]
    script.wait(29_999)
    assert script.state() == "Ongoing"
    script.wait(1)
    assert script.state() == "PrepareAbort", "its time-out goes on"
    script.markers.clear()
    script.move(0)
    script.load(0)
    assert not script.write_markers().marker.transaction_result
    assert script.state() == "CompleteAbort"


# ---- A transactional id: every move of the table and no other, and what becomes of its epochs

LAST = 32_766  # the greatest epoch that a client is given


def transaction(epoch: int, state: State = State.EMPTY) -> Transaction:
    return Transaction("x", 1, 60_000, 0, producer_epoch=epoch, state=state)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("move", Move)
def test_a_move_is_in_the_table_or_refused(state: State, move: Move) -> None:
    subject = transaction(0, state)
    if (state, move) in TRANSITIONS:
        subject.move(move, 5)
        assert (subject.state, subject.updated_at) == (TRANSITIONS[state, move], 5)
    else:
        with pytest.raises(IllegalMoveError):
            subject.move(move, 5)


def test_after_the_outcome_only_completion_is_possible() -> None:
    for state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert [move for at, move in TRANSITIONS if at is state] == [Move.COMPLETE]


@pytest.mark.parametrize("expected", [None, (1, LAST)])
def test_after_the_last_epoch_comes_a_new_producer_id(expected: tuple[int, int] | None) -> None:
    subject = transaction(LAST)
    assert subject.initialise(expected, lambda: 2, 60_000, 5) == ErrorCode.NONE
    assert (subject.producer_id, subject.producer_epoch, subject.previous_producer_id) == (2, 0, 1)
    assert subject.last_producer_epoch == (NO_PRODUCER if expected is None else LAST), "which it may repeat"
    assert subject.accepts_producer((1, LAST)), "its answer may have been lost"
    assert not subject.accepts_producer((1, 3))


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_the_last_epoch_rotates_the_producer_id(commit: bool) -> None:
    subject = transaction(LAST, State.ONGOING)
    subject.prepare(Move.COMMIT if commit else Move.ABORT, 2, lambda: 2, 5)
    assert (subject.producer_id, subject.producer_epoch) == (1, LAST + 1), "the marker is of the old id"
    assert subject.next_producer == (2, 0)
    value = transaction_record(subject).value
    assert (value.next_producer_id, value.next_producer_epoch) == (2, 0)
    subject.complete(6)
    assert (subject.producer_id, subject.producer_epoch) == (2, 0)
    assert subject.raised_epoch(1, LAST)
    assert not subject.raised_epoch(1, LAST - 1)


@pytest.mark.parametrize("expected", [None, (1, LAST)])
def test_the_fenced_last_epoch_is_never_given_out(expected: tuple[int, int] | None) -> None:
    subject = transaction(LAST, State.ONGOING)
    subject.fence(5)
    subject.complete(6)
    assert subject.producer_epoch == LAST + 1
    assert subject.initialise(expected, lambda: 2, 60_000, 7) == ErrorCode.NONE
    assert (subject.producer_id, subject.producer_epoch) == (2, 0)


def test_no_epoch_of_an_id_is_given_to_two_producers() -> None:
    subject = transaction(-1)
    ids = count(10)
    given = []
    for _ in range(70_000):
        assert subject.initialise(None, lambda: next(ids), 60_000, 5) == ErrorCode.NONE
        given.append((subject.producer_id, subject.producer_epoch))
    assert len(set(given)) == len(given)
    assert max(epoch for _, epoch in given) == LAST


def test_late_markers_of_a_former_transaction_complete_nothing(
    script: TransactionScript, producer: tuple[int, int]
) -> None:
    """Markers are written again after the log was read, so that they may be reported twice."""
    script.batch_add(producer, ("orders", 0))
    ended = script.end(producer, version=5)
    former = script.write_markers()
    producer = (ended.producer_id, ended.producer_epoch)
    script.batch_add(producer, ("orders", 1))
    script.end(producer, version=5)
    script.markers.insert(0, former)
    script.write_markers()
    assert script.state() == "PrepareCommit"
    script.write_markers()
    assert script.state() == "CompleteCommit"

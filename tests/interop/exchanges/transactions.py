"""Transactions: producers and their epochs, what is in a transaction, its end, its time-out, and what readers see."""

from __future__ import annotations

from typing import Any

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.interop.exchanges import commits
from tests.interop.exchanges.heartbeats import Heartbeater
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage
from tests.interop.exchanges.topics import create, exists, new
from tests.interop.exchanges.writer import ADDED_BY_WRITES, BUMPED_AT_END, Writer


def with_topic(stage: Stage) -> None:
    """The script's own topic of two partitions, off the record, once their leader answers for them."""
    with stage.off_the_record():
        client = stage.connect("admin")
        create(client, new(stage.group, 2))
        exists(client, stage.group)
        part = kw.ListOffsetsRequestListOffsetsPartition
        asked = [part(partition_index=index, timestamp=-1) for index in range(2)]
        topic = kw.ListOffsetsRequestListOffsetsTopic(name=stage.group, partitions=asked)
        client.call_when_free(kw.ListOffsetsRequest(replica_id=-1, topics=[topic]), 8)
    stage.forget_topic_ids()


@script(settings="transactions", versions=range(6))
def producer_ids(stage: Stage, version: int) -> None:
    """A producer that starts raises the epoch; one that goes on names its id and epoch (KIP-360)."""
    a = Writer(stage)
    fenced = E.PRODUCER_FENCED if version >= 4 else E.INVALID_PRODUCER_EPOCH
    a.starts(version)
    a.starts(version)
    a.starts(version, transactional_id=None, transaction_timeout_ms=0)
    a.starts(version, E.INVALID_REQUEST, transactional_id="")
    for ms in (0, -1, 900_001):
        a.starts(version, E.INVALID_TRANSACTION_TIMEOUT, transaction_timeout_ms=ms)
    a.starts(version, transaction_timeout_ms=900_000)
    a.describes()
    if version < 3:
        return
    producer_id, epoch = a.producer
    a.starts(version, producer_id=producer_id, producer_epoch=epoch)
    a.starts(version, producer_id=producer_id, producer_epoch=epoch)  # the answer was lost
    a.starts(version, fenced, producer_id=producer_id, producer_epoch=epoch - 1)
    a.starts(version, fenced, producer_id=producer_id, producer_epoch=epoch + 9)
    a.starts(version, fenced, producer_id=producer_id + 1_000_000, producer_epoch=epoch)
    a.starts(version, E.INVALID_REQUEST, producer_id=producer_id)
    a.starts(version, E.INVALID_REQUEST, producer_epoch=epoch)
    b = Writer(stage, "b")
    b.starts(version, producer_id=producer_id, producer_epoch=epoch)


@script(settings="transactions", versions=(4, 5))
def transactions_end(stage: Stage, version: int) -> None:
    """Two commits and an abort, with what readers and operators see at each step."""
    with_topic(stage)
    a = Writer(stage)
    a.starts()
    a.describes()
    for commit in (True, False, True):
        if version < BUMPED_AT_END:
            a.adds(0)
            a.describes()
            a.adds(1)
            a.writes(b"1", b"2")
        else:
            a.writes(b"1", b"2", version=12)
        a.looks()
        a.describes()
        a.lists(["Ongoing"])
        a.writes(b"3", version=11 if version < BUMPED_AT_END else 12)
        a.ends(commit=commit, version=version)
        a.looks()
        a.looks(offset=2)
        a.looks(partition=1)
        a.describes()
        a.lists()


@script(settings="transactions", versions=(9, 10, 11))
def produce_outside_a_transaction(stage: Stage, version: int) -> None:
    """Up to Produce v11 a partition must have been added."""
    error = E.TRANSACTION_ABORTABLE if version >= 11 else E.INVALID_TXN_STATE
    with_topic(stage)
    a = Writer(stage)
    a.starts()
    a.writes(b"1", version=version, error=error)
    a.adds(1)
    a.writes(b"1", version=version, error=error)
    a.writes(b"1", partition=1, version=version)
    a.ends(commit=True)
    a.writes(b"1", partition=1, version=version, error=error)
    a.looks()
    a.looks(partition=1)


@script(settings="transactions", versions=(8, 11, 12, 13))
def produce_of_the_wrong_producer(stage: Stage, version: int) -> None:
    """Epochs, ids, and batches that do not fit to the request."""
    with_topic(stage)
    a = Writer(stage)
    a.starts()
    a.starts()
    _, epoch = a.producer
    a.adds(0)
    a.writes(b"1", version=version)
    a.writes(b"x", version=version, error=E.INVALID_PRODUCER_EPOCH, producer_epoch=epoch - 1)
    a.writes(b"x", version=version, error=E.OUT_OF_ORDER_SEQUENCE_NUMBER, sequence=7)
    a.looks()
    a.ends(commit=True, version=5 if version >= 12 else 4)
    a.looks()


@script(settings="transactions", versions=range(4))
def partitions_are_refused(stage: Stage, version: int) -> None:
    """AddPartitionsToTxn of unknown ids, producers and topics; one wrong partition leaves the others out."""
    with_topic(stage)
    a = Writer(stage)
    a.adds(0, version=version, error=E.INVALID_PRODUCER_ID_MAPPING)
    a.starts()
    a.starts()
    producer_id, epoch = a.producer
    fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
    a.adds(0, version=version, error=E.INVALID_REQUEST, transactional_id="")
    a.adds(0, version=version, error=E.INVALID_PRODUCER_ID_MAPPING, producer_id=producer_id + 1_000_000)
    a.adds(0, version=version, error=fenced, producer_epoch=epoch - 1)
    a.adds(0, version=version, error=fenced, producer_epoch=epoch + 1)
    a.adds(0, topic="nothing", version=version, error=E.UNKNOWN_TOPIC_OR_PARTITION)
    a.describes()
    a.adds(0, version=version)
    a.adds(0, version=version)
    a.adds(1, version=version)
    a.describes()
    a.ends(commit=False)
    a.describes()


@script(settings="transactions", versions=(4, 5))
def ends_are_refused(stage: Stage, version: int) -> None:
    """EndTxn without a transaction, of the wrong producer, twice, and the other way round."""
    with_topic(stage)
    a = Writer(stage)
    a.ends(commit=True, version=version, error=E.INVALID_PRODUCER_ID_MAPPING)
    a.ends(commit=True, version=version, error=E.INVALID_REQUEST, transactional_id="")
    a.starts()
    a.starts()
    producer_id, epoch = a.producer
    a.ends(commit=True, version=version, error=E.INVALID_TXN_STATE)
    if version < BUMPED_AT_END:
        a.ends(commit=False, version=version, error=E.INVALID_TXN_STATE)
    else:
        a.ends(commit=False, version=version)
        a.describes()
    producer_id, epoch = a.producer
    a.adds(0)
    a.ends(commit=True, version=version, error=E.INVALID_PRODUCER_ID_MAPPING, producer_id=producer_id + 1_000_000)
    a.ends(commit=True, version=version, error=E.PRODUCER_FENCED, producer_epoch=epoch - 1)
    a.ends(commit=True, version=version, error=E.PRODUCER_FENCED, producer_epoch=epoch + 1)
    a.ends(commit=True, version=version)
    a.ends(commit=True, version=version, producer_epoch=epoch)
    a.ends(commit=False, version=version, error=E.INVALID_TXN_STATE, producer_epoch=epoch)
    a.adds(0)
    a.ends(commit=False, version=version)
    a.ends(commit=False, version=version)
    a.describes()
    a.looks()


@script(settings="transactions", versions=range(7))
def offsets_in_transactions(stage: Stage, version: int) -> None:
    """Offsets are pending until the end; who wants stable ones is sent away until then."""
    a = Writer(stage)
    a.starts()
    end = 4 if version < 5 else 5
    a.fetches_offsets()
    for offset, commit in ((3, True), (5, False), (7, True)):
        if version < 5:
            a.adds_group()
        a.commits_offset(offset, version)
        a.describes()
        a.fetches_offsets(error=E.UNSTABLE_OFFSET_COMMIT)
        a.fetches_offsets(1)
        a.fetches_offsets(stable=False)
        a.commits_offset(offset + 1, version)
        a.ends(commit=commit, version=end)
        a.fetches_offsets()
        a.describes()


@script(settings="transactions", versions=range(5))
def groups_are_added(stage: Stage, version: int) -> None:
    """AddOffsetsToTxn, and what is refused."""
    a = Writer(stage)
    a.adds_group(version, E.INVALID_PRODUCER_ID_MAPPING)
    a.starts()
    a.starts()
    producer_id, epoch = a.producer
    fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
    a.adds_group(version, E.INVALID_REQUEST, transactional_id="")
    a.adds_group(version, E.INVALID_PRODUCER_ID_MAPPING, producer_id=producer_id + 1_000_000)
    a.adds_group(version, fenced, producer_epoch=epoch - 1)
    a.adds_group(version)
    a.adds_group(version, group_id="")
    a.describes()
    a.ends(commit=True)


@script(settings="transactions", versions=(3, 4, 5))
def members_commit_in_transactions(stage: Stage, version: int) -> None:
    """TxnOffsetCommit with the generation and member id of KIP-447."""
    m = stage.member("m")
    stage.stable(m)
    a = Writer(stage)
    a.starts()
    a.adds_group()
    known = {"member_id": m.id, "generation_id_or_member_epoch": m.generation}
    a.commits_offset(1, version, E.UNKNOWN_MEMBER_ID, **{**known, "member_id": "nobody"})
    a.commits_offset(1, version, E.ILLEGAL_GENERATION, **{**known, "generation_id_or_member_epoch": 0})
    a.commits_offset(1, version, E.ILLEGAL_GENERATION, **{**known, "generation_id_or_member_epoch": 9})
    a.commits_offset(1, version, E.UNKNOWN_MEMBER_ID, generation_id_or_member_epoch=1)
    late = {**known, "generation_id_or_member_epoch": 9}
    a.commits_offset(1, version, E.UNKNOWN_TOPIC_OR_PARTITION, topic="nothing", **late)
    part = kw.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    both = [kw.TxnOffsetCommitRequestTopic(name=name, partitions=[part]) for name in ("nothing", "orders")]
    a.commits_offset(1, version, E.UNKNOWN_TOPIC_OR_PARTITION, topics=both, **known)
    a.commits_offset(1, version, **known)
    a.commits_offset(2, version, partition=1)
    a.fetches_offsets(0, 1, error=E.UNSTABLE_OFFSET_COMMIT)
    a.ends(commit=True)
    a.fetches_offsets(0, 1)


@script(settings="transactions", versions=(4, 5))
def producer_is_replaced(stage: Stage, version: int) -> None:
    """A second producer with the same transactional id aborts what the first has open, and fences it."""
    with_topic(stage)
    old, young = Writer(stage), Writer(stage, "young", transactional_id=f"{stage.group}/a")
    old.starts()
    old.adds(0)
    old.writes(b"old")
    old.adds_group()
    old.commits_offset(1)
    young.starts()
    young.describes()
    young.looks()
    young.fetches_offsets()
    old.adds(1, error=E.PRODUCER_FENCED)
    old.adds_group(error=E.PRODUCER_FENCED)
    old.commits_offset(2, error=E.INVALID_PRODUCER_EPOCH)
    old.writes(b"old", error=E.INVALID_PRODUCER_EPOCH)
    old.ends(commit=True, version=version, error=E.PRODUCER_FENCED)
    old.starts(error=E.PRODUCER_FENCED, producer_id=old.producer[0], producer_epoch=old.producer[1])
    young.adds(0)
    young.writes(b"young")
    young.ends(commit=True, version=version)
    young.looks()


@script(settings="transactions")
def transactions_side_by_side(stage: Stage) -> None:
    """The last stable offset is where the oldest open transaction begins."""
    with_topic(stage)
    a, b = Writer(stage), Writer(stage, "b")
    for each in (a, b):
        each.starts()
        each.adds(0)
    a.writes(b"a1")
    b.writes(b"b1")
    a.writes(b"a2")
    a.looks()
    a.lists()
    b.ends(commit=False)
    a.looks()
    a.ends(commit=True)
    a.looks()
    a.looks(offset=1)
    a.looks(offset=3)
    b.adds(0)
    b.writes(b"b2")
    b.looks()
    b.ends(commit=True)
    b.looks()


@script(settings="transactions")
def transaction_times_out(stage: Stage) -> None:
    """It is aborted, and its producer fenced until it starts again."""
    with_topic(stage)
    a = Writer(stage, ms=1_000)
    a.starts()
    a.adds(0)
    a.writes(b"late")
    a.rests()
    a.describes()
    a.looks()
    a.adds(0, error=E.PRODUCER_FENCED)
    a.writes(b"later", error=E.INVALID_PRODUCER_EPOCH)
    a.ends(commit=True, error=E.PRODUCER_FENCED)
    a.ends(commit=True, version=5, error=E.INVALID_TXN_STATE)
    producer_id, epoch = a.producer
    a.starts(producer_id=producer_id, producer_epoch=epoch)
    a.adds(0)
    a.ends(commit=True)


@script(settings="transactions")
def operators_ask(stage: Stage) -> None:
    """DescribeTransactions, ListTransactions with filters, and DescribeProducers of what is not there."""
    with_topic(stage)
    a, b = Writer(stage), Writer(stage, "b")
    a.describes(error=E.TRANSACTIONAL_ID_NOT_FOUND)
    a.describes("", error=E.INVALID_REQUEST)
    a.starts()
    b.starts()
    b.adds(0)
    b.writes(b"1")
    a.describes(a.id, b.id, f"{stage.group}/c", error=E.TRANSACTIONAL_ID_NOT_FOUND)
    for version in (0, 1):
        a.lists(version=version)
        a.lists(["Ongoing", "Nonsense"], version=version)
        a.lists(["ongoing"], version=version)
        a.lists(producer_id_filters=[b.producer[0]], version=version)
    for pattern in (".*", f"{stage.group}/b", "b", f"^{stage.group}/[ac]$", ""):
        a.lists(version=2, transactional_id_pattern=pattern)
    a.lists(["Ongoing"], version=2, transactional_id_pattern=f"{stage.group}/.", producer_id_filters=[b.producer[0]])
    a.lists(["Nonsense"], version=2, transactional_id_pattern="(", error=E.INVALID_REGULAR_EXPRESSION)
    a.lists(duration_filter=3_600_000)
    a.lists(["Empty"], duration_filter=3_600_000)
    a.lists(["Ongoing"], duration_filter=3_600_000)
    topic = kw.DescribeProducersRequestTopicRequest
    for name, partition in (("nothing", 0), (stage.group, 9)):
        request = kw.DescribeProducersRequest(topics=[topic(name=name, partition_indexes=[partition])])
        a.asks(request, 0, E.UNKNOWN_TOPIC_OR_PARTITION)
    b.ends(commit=True)
    a.lists()
    a.lists(duration_filter=3_600_000)


@script(settings="transactions", versions=(4, 5))
def brokers_add_partitions(stage: Stage, version: int) -> None:
    """AddPartitionsToTxn of several producers at once, and the question whether a partition was added (KIP-890)."""
    with_topic(stage)
    a, b = Writer(stage), Writer(stage, "b")
    a.starts()
    b.starts()
    old = a.producer
    a.starts()

    def ask(*transactions: tuple[Writer, int, bool], error: E | None = None, **changes: Any) -> None:
        request = kw.AddPartitionsToTxnRequest(
            transactions=[each.batched([partition], verify, **changes) for each, partition, verify in transactions]
        )
        a.asks(request, version, error)

    ask((a, 0, True), error=E.TRANSACTION_ABORTABLE)
    ask((a, 0, False), (b, 1, False))
    ask((a, 0, True), (b, 1, True))
    ask((a, 1, True), error=E.TRANSACTION_ABORTABLE)
    ask((a, 0, False), error=E.PRODUCER_FENCED, producer_epoch=old[1])
    ask((a, 0, True), error=E.PRODUCER_FENCED, producer_epoch=old[1])
    ask((a, 0, True), error=E.INVALID_PRODUCER_ID_MAPPING, transactional_id=f"{stage.group}/nothing")
    ask((a, 9, False), error=E.UNKNOWN_TOPIC_OR_PARTITION)
    a.describes(a.id, b.id)
    for each in (a, b):
        each.ends(commit=False, version=5)


@script(settings="transactions")
def producer_goes_on_after_an_error(stage: Stage) -> None:
    """It names its id and epoch while its transaction is open: that is aborted, and it goes on (KIP-360)."""
    with_topic(stage)
    a = Writer(stage)
    a.starts()
    a.adds(0)
    a.writes(b"1")
    a.starts(producer_id=a.producer[0], producer_epoch=a.producer[1])
    a.describes()
    a.looks()
    a.adds(0)
    a.writes(b"2")
    a.ends(commit=True)
    a.looks()


@script(settings="transactions", versions=(11, 12))
def batches_that_do_not_fit(stage: Stage, version: int) -> None:
    """Batches and requests of which one is transactional and the other not, and of unknown producers."""
    with_topic(stage)
    a = Writer(stage)
    a.starts()
    a.starts()
    producer_id, epoch = a.producer
    abortable = E.TRANSACTION_ABORTABLE
    if version >= 12:
        a.writes(b"x", version=version, error=E.INVALID_PRODUCER_EPOCH, producer_epoch=epoch - 1)
        a.writes(b"x", version=version, error=E.INVALID_PRODUCER_ID_MAPPING, transactional_id=f"{stage.group}/nothing")
        a.writes(b"x", version=version, error=E.INVALID_PRODUCER_ID_MAPPING, producer_id=producer_id + 1_000_000)
        a.writes(b"x", version=version)
    else:
        a.adds(0)
        a.writes(b"x", version=version, error=E.INVALID_PRODUCER_ID_MAPPING, producer_id=producer_id + 1_000_000)
        a.writes(b"x", version=version, partition=1, error=abortable)
        a.writes(b"x", version=version)
    a.writes(b"y", version=version, error=E.INVALID_TXN_STATE, transactional=False, sequence=1)
    a.ends(commit=True, version=5)
    a.writes(b"z", version=version, transactional=False, transactional_id=None)
    a.looks()


@script(settings="transactions", versions=(1, 2))
def operator_aborts_what_hangs(stage: Stage, version: int) -> None:
    """WriteTxnMarkers as kafka-transactions.sh sends it, and what the producer is answered then."""
    with_topic(stage)
    a = Writer(stage)
    a.starts()
    a.adds(0)
    a.writes(b"1")
    topic = kw.WriteTxnMarkersRequestWritableTxnMarkerTopic(name=stage.group, partition_indexes=[0])
    marker = kw.WriteTxnMarkersRequestWritableTxnMarker(
        producer_id=a.producer[0], producer_epoch=a.producer[1], transaction_result=False, topics=[topic]
    )
    a.asks(kw.WriteTxnMarkersRequest(markers=[marker]), version)
    a.looks()
    a.describes()
    a.ends(commit=True)
    a.looks()


@script(settings="transactions", versions=(2, 3, 5))
def offsets_are_refused(stage: Stage, version: int) -> None:
    """TxnOffsetCommit of the wrong producer, without AddOffsetsToTxn, to groups and topics that are none."""
    a = Writer(stage)
    a.starts()
    a.starts()
    producer_id, epoch = a.producer
    if version < 5:
        a.commits_offset(1, version, E.INVALID_TXN_STATE)
        a.adds_group()
    else:
        a.commits_offset(1, version, E.INVALID_PRODUCER_EPOCH, producer_epoch=epoch - 1)
    a.commits_offset(1, version)
    a.commits_offset(1, version, E.INVALID_PRODUCER_EPOCH, producer_epoch=epoch - 1)
    a.commits_offset(1, version, E.INVALID_PRODUCER_ID_MAPPING, producer_id=producer_id + 1_000_000)
    a.commits_offset(1, version, E.INVALID_GROUP_ID, group_id="")
    a.commits_offset(1, version, E.UNKNOWN_TOPIC_OR_PARTITION, topic="nothing")
    a.commits_offset(1, version, E.UNKNOWN_TOPIC_OR_PARTITION, partition=9)
    if version >= 3:
        a.commits_offset(1, version, E.UNKNOWN_MEMBER_ID, generation_id_or_member_epoch=1, member_id="nobody")
    a.fetches_offsets(error=E.UNSTABLE_OFFSET_COMMIT)
    a.ends(commit=False, version=5)
    a.fetches_offsets()


@script(settings="transactions")
def pending_offsets_and_others(stage: Stage) -> None:
    """Plain commits, fetches of all topics, OffsetDelete and DeleteGroups beside offsets of an open transaction."""
    a = Writer(stage)
    a.starts()
    commits.commit(a.connection, 8, ("orders", 0, 1))
    a.commits_offset(5, 5)
    for version in (7, 8, 9):
        changes = {"require_stable": True}
        group = kw.OffsetFetchRequestGroup(group_id=stage.group, topics=None)
        request = kw.OffsetFetchRequest(group_id=stage.group, topics=None, **changes)
        if version >= 8:
            request = kw.OffsetFetchRequest(groups=[group], **changes)
        a.asks(request, version, E.UNSTABLE_OFFSET_COMMIT)
    commits.commit(a.connection, 8, ("orders", 0, 2))
    a.fetches_offsets(error=E.UNSTABLE_OFFSET_COMMIT)
    a.fetches_offsets(stable=False)
    commits.delete(a.connection, ("orders", [0]))
    a.fetches_offsets()
    a.connection.call(kw.ListGroupsRequest(), 5)
    a.connection.describe()
    a.ends(commit=True, version=5)
    a.fetches_offsets()
    a.connection.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2)
    a.fetches_offsets()


@script(settings="transactions")
def group_of_pending_offsets_is_deleted(stage: Stage) -> None:
    """A group that has but pending offsets."""
    a = Writer(stage)
    a.starts()
    a.commits_offset(5, 5)
    a.connection.call(kw.ListGroupsRequest(), 5)
    a.connection.call(kw.DeleteGroupsRequest(groups_names=[stage.group]), 2)
    a.fetches_offsets(stable=False)
    a.ends(commit=True, version=5)
    a.fetches_offsets()


@script(settings="transactions", versions=(3, 5))
def consumers_commit_in_transactions(stage: Stage, version: int) -> None:
    """TxnOffsetCommit of a member of KIP-848, in its epoch and others."""
    m = Heartbeater(stage, "m")
    m.joins()
    m.reports()
    a = Writer(stage)
    a.starts()
    a.adds_group()
    known = {"member_id": m.id, "generation_id_or_member_epoch": m.epoch}
    a.commits_offset(1, version, **known)
    a.commits_offset(1, version, E.ILLEGAL_GENERATION, **{**known, "generation_id_or_member_epoch": m.epoch - 1})
    a.commits_offset(1, version, E.ILLEGAL_GENERATION, **{**known, "generation_id_or_member_epoch": m.epoch + 1})
    a.commits_offset(1, version, E.UNKNOWN_MEMBER_ID, **{**known, "member_id": "nobody"})
    a.commits_offset(2, version, partition=1)
    a.ends(commit=True)
    a.fetches_offsets(0, 1)


@script(settings="transactions", versions=(11, 12))
def records_without_a_key_in_a_transaction(stage: Stage, version: int) -> None:
    """They are refused, and the transaction goes on: the sequence is the one that was refused."""
    with stage.off_the_record():
        client = stage.connect("admin")
        create(client, new(stage.group, configs={"cleanup.policy": "compact"}))
        exists(client, stage.group)
    a = Writer(stage)
    a.starts()
    if version < ADDED_BY_WRITES:
        a.adds(0)
    a.writes(b"1", b"2", version=version, error=E.INVALID_RECORD)
    a.describes()
    a.looks()
    a.writes(b"1", b"2", version=version, key=b"k")
    a.ends(commit=True, version=4 if version < ADDED_BY_WRITES else BUMPED_AT_END)
    a.looks()

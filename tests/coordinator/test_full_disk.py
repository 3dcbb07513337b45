"""A transaction on a full disk: RLIMIT_FSIZE keeps the files of the process from growing, until it is lifted."""

from __future__ import annotations

import resource
from pathlib import Path

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import Record, encode_batch
from tests.support.clients.served import Served
from tests.support.waiting import eventually
from tests.support.wire import Wire


def test_a_marker_waits_for_room_on_the_disk(tmp_path: Path) -> None:
    """The log of transactions has room for the outcome; the partition, which is larger, for a part of the marker."""
    with Served({"orders": 1}, tmp_path, allowed="orders-0 cannot be written") as served, Wire(served.address) as wire:
        known = wire.call(kw.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=600_000), 4)
        producer = {"producer_id": known.producer_id, "producer_epoch": known.producer_epoch}

        def produce(sequence: int, size: int) -> int:
            data = encode_batch([Record(b"k", bytes(size))], transactional=True, base_sequence=sequence, **producer)
            parts = [kw.ProduceRequestPartitionProduceData(index=0, records=data)]
            named = kw.ProduceRequestTopicProduceData(name="orders", partition_data=parts)
            request = kw.ProduceRequest(transactional_id="tx", acks=-1, timeout_ms=1_000, topic_data=[named])
            code: int = wire.call(request, 9).responses[0].partition_responses[0].error_code
            return code

        def state() -> str:
            asked = kw.DescribeTransactionsRequest(transactional_ids=["tx"])
            name: str = wire.call(asked, 0).transaction_states[0].transaction_state
            return name

        def stable_end() -> int:
            part = kw.ListOffsetsRequestListOffsetsPartition(partition_index=0, timestamp=-1)
            topic = kw.ListOffsetsRequestListOffsetsTopic(name="orders", partitions=[part])
            request = kw.ListOffsetsRequest(isolation_level=1, topics=[topic])
            offset: int = wire.call(request, 7).topics[0].partitions[0].offset
            return offset

        topics = [kw.AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name="orders", partitions=[0])]
        added = kw.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_topics=topics,
            **{f"v3_and_below_{name}": value for name, value in producer.items()},
        )
        assert wire.call(added, 3).results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
        assert produce(0, 100_000) == 0
        (file,) = (tmp_path / "orders-0").glob("*.log")
        size = file.stat().st_size
        no_limit = resource.prlimit(served.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (size + 10, no_limit[1]))
        assert produce(1, 100) == ErrorCode.KAFKA_STORAGE_ERROR
        assert wire.call(kw.EndTxnRequest(transactional_id="tx", committed=True, **producer), 4).error_code == 0
        eventually(lambda: any("cannot be written" in str(line) for line in served.log))
        assert state() == "PrepareCommit"
        assert stable_end() == 0, "readers of committed records get nothing yet"
        resource.prlimit(served.pid, resource.RLIMIT_FSIZE, no_limit)
        eventually(lambda: state() == "CompleteCommit")
        assert stable_end() == 2, "the record and its marker, nothing of what was refused"
    with Served({"orders": 1}, tmp_path) as served, Wire(served.address) as wire:
        assert stable_end() == 2, "and so it is on the disk"

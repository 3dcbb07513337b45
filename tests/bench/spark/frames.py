"""Frames as coordinators get them, by the million: mixed apis and versions, 156 bytes on average, ids that vary.

Templates are encoded once. A million of them in a random order make a block; of every further block only the
correlation ids, members and groups are written anew, in place, by numpy.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import kcoord_wire as kw

BLOCK: Final = 1_000_000
MEAN_BYTES: Final = 156
_ROW_GROUP: Final = 100_000
_MEMBER: Final = "########"
_GROUP: Final = "@@@@"
_TAIL: Final = f"consumer-orders-1-5f0c2b1e-97d4-4a0e-8f6a-5a1e{_MEMBER}"


def _templates() -> Iterator[tuple[int, bytes]]:
    """Weight and frame."""
    group, member = f"orders-{_GROUP}", _TAIL
    subscription = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=["orders", "payments"]), 1)
    offers = [kw.JoinGroupRequestProtocol(name=name, metadata=subscription) for name in ("range", "cooperative-sticky")]
    share = kw.ConsumerProtocolAssignmentTopicPartition(topic="orders", partitions=list(range(6)))
    assignment = kw.encode_prefixed(kw.ConsumerProtocolAssignment(assigned_partitions=[share]), 1)
    given = [
        kw.SyncGroupRequestAssignment(member_id=f"{_TAIL[:-8]}0000000{n}", assignment=assignment) for n in range(3)
    ]
    beat = kw.HeartbeatRequest(group_id=group, generation_id=17, member_id=member)
    join = kw.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id=member,
        protocol_type="consumer",
        protocols=offers,
    )
    follows = kw.SyncGroupRequest(group_id=group, generation_id=17, member_id=member)
    leads = kw.SyncGroupRequest(group_id=group, generation_id=17, member_id=member, assignments=given)
    leaves = kw.LeaveGroupRequest(group_id=group, members=[kw.LeaveGroupRequestMemberIdentity(member_id=member)])
    leaves_alone = kw.LeaveGroupRequest(group_id=group, member_id=member)
    finds = kw.FindCoordinatorRequest(key=group)
    newer = kw.ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=5)
    fetches = kw.OffsetFetchRequest(
        group_id=group, topics=[kw.OffsetFetchRequestTopic(name="orders", partition_indexes=list(range(6)))]
    )

    def commit(partitions: int) -> object:
        each = [
            kw.OffsetCommitRequestPartition(partition_index=n, committed_offset=10**6 + n, committed_metadata="")
            for n in range(partitions)
        ]
        topics = [kw.OffsetCommitRequestTopic(name="orders", partitions=each)]
        return kw.OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=17, member_id=member, topics=topics)

    for weight, message, versions in (
        (38, beat, (1, 3, 4)),
        (8, commit(1), (2, 6, 8)),
        (10, commit(4), (6, 8)),
        (13, commit(10), (2, 7, 8)),
        (5, fetches, (5, 7)),
        (12, join, (5, 7, 9)),
        (6, follows, (3, 5)),
        (3, leads, (3, 5)),
        (1, leaves_alone, (2,)),
        (1, leaves, (4, 5)),
        (2, finds, (2, 3)),
        (3, newer, (0,)),
    ):
        for version in versions:
            for client in ("orders-service-7", "rdkafka"):
                frame = kw.encode_request(message, version, correlation_id=0, client_id=client)
                yield weight * 60 // len(versions), frame


class _Block:
    """A million frames, and where in them the parts lie that vary."""

    def __init__(self, rows: int, seed: int) -> None:
        chosen = random.Random(seed)
        weights, frames = zip(*_templates(), strict=True)
        picks = np.array(chosen.choices(range(len(frames)), weights, k=rows))
        lengths = np.array([len(frame) for frame in frames])[picks]
        ends = np.cumsum(lengths)
        starts = ends - lengths
        self.data = np.empty(ends[-1], np.uint8)
        self.offsets = np.concatenate([[0], ends]).astype(np.int32)
        members, groups = [], []
        for number, frame in enumerate(frames):
            mine = starts[picks == number]
            self.data[mine[:, None] + np.arange(len(frame))] = np.frombuffer(frame, np.uint8)
            for marks, found in ((_MEMBER, members), (_GROUP, groups)):
                if (at := frame.find(marks.encode())) >= 0:
                    found.append(mine + at)
        self.correlations, self.members, self.groups = starts + 4, np.concatenate(members), np.concatenate(groups)

    def vary(self, seed: int) -> pa.Array:
        """The frames with other ids."""
        chosen = np.random.default_rng(seed)
        for places, digits, base in ((self.members, 8, 16), (self.groups, 4, 10)):
            values = chosen.integers(0, base, (len(places), digits))
            self.data[places[:, None] + np.arange(digits)] = np.frombuffer(b"0123456789abcdef", np.uint8)[values]
        numbers = chosen.integers(0, 256, (len(self.correlations), 4), np.uint8)
        numbers[:, 0] &= 0x7F
        self.data[self.correlations[:, None] + np.arange(4)] = numbers
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(self.offsets) - 1, buffers)


def _write_blocks(folder: Path, numbers: list[int], rows: int) -> int:
    block, size = _Block(rows, seed=1), 0
    for number in numbers:
        table = pa.table({"frame": block.vary(number)})
        path = folder / f"frames-{number:05}.parquet"
        pq.write_table(
            table, path, row_group_size=_ROW_GROUP, compression="none", use_dictionary=False, write_statistics=False
        )
        size += len(block.data)
    return size


def write_frames(folder: Path, rows: int) -> int:
    """Write so many frames as Parquet files of a million (uncompressed, column ``frame``); bytes of all frames."""
    folder.mkdir(parents=True)
    whole, rest = divmod(rows, BLOCK)
    size, workers = 0, os.cpu_count() or 1
    with ProcessPoolExecutor(workers) as pool:
        runs = [pool.submit(_write_blocks, folder, list(range(n, whole, workers)), BLOCK) for n in range(workers)]
        if rest:
            runs.append(pool.submit(_write_blocks, folder, [whole], rest))
        for run in runs:
            size += run.result()
    return size

"""Logs of groups: those of real brokers, and records of classic groups by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kcoord_wire import messages as m
from kcoord_wire.codec.registry import encode_prefixed
from kcoord_wire.forensics.model import LogRow, table_of
from kcoord_wire.records import encode_offsets_record

CONSUMER_GROUPS = Path(__file__).parents[1] / "data" / "consumer_groups"
"""Logs of real brokers, by version."""

MINUTE = 60_000_000_000
NOW = 28_000_000 * MINUTE


def table(rows: Sequence[tuple[bytes | None, bytes | None]], *, first: int = 0, step: int = 1_000_000) -> pa.Table:
    """Records of one partition, `step` ns apart."""
    return table_of(
        LogRow,
        [LogRow("x.log", 0, first + n, n, NOW + n * step, key, value) for n, (key, value) in enumerate(rows)],
    )


def generation(
    number: int, members: dict[str, Sequence[int]], *, version: int = 3, topics: Sequence[str] = ("t",), **fields: Any
) -> tuple[bytes, bytes | None]:
    """A GroupMetadata record; members by id with the partitions of `t` they are given."""
    value = m.GroupMetadataValue(
        protocol_type="consumer" if members or number else "",
        generation=number,
        protocol=fields.pop("protocol", "range") if members else None,
        leader=fields.pop("leader", next(iter(members))) if members else None,
        members=[
            m.GroupMetadataValueMemberMetadata(
                member_id=member_id,
                client_id=member_id.partition("-")[0],
                client_host="/10.0.0.1",
                session_timeout=10_000,
                subscription=encode_prefixed(m.ConsumerProtocolSubscription(topics=list(topics)), 1),
                assignment=encode_prefixed(
                    m.ConsumerProtocolAssignment(
                        assigned_partitions=[
                            m.ConsumerProtocolAssignmentTopicPartition(topic="t", partitions=list(partitions))
                        ]
                    ),
                    1,
                ),
            )
            for member_id, partitions in members.items()
        ],
        **fields,
    )
    return encode_offsets_record(m.GroupMetadataKey(group="g"), value, value_version=version)

"""Coordination logs of Marshal by hand: the recorded one, one of many members, and lines of text with their times."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from kcoord_wire.forensics.marshal.claims import marshal_histories
from kcoord_wire.forensics.marshal.reader import ClaimRules
from kcoord_wire.forensics.model import GroupHistory, LogRow, table_of
from kcoord_wire.records import Record, encode_batch

LIVE_LOG = Path(__file__).parents[1] / "data" / "golden" / "marshal" / "live_log.jsonl"
"""What Go clients wrote to a real topic."""

NOW = 1_700_000_000
_S = 1_000_000_000


def log_rows(
    lines: Iterable[tuple[float, bytes | str]],
    *,
    partition: int = 0,
    first: int = 0,
    is_append_time: bool = True,
    source: str = "",
) -> list[LogRow]:
    """Records of one coordination partition.

    :param lines: second after `NOW` at which the broker appended each, and its text. ``{}`` in a str stands for the
        time of a sender with a right clock; ``{+3}`` for one whose clock is 3 s ahead
    """
    rows = []
    for offset, (second, text) in enumerate(lines, start=first):
        value = text if isinstance(text, bytes) else _with_time(text, second).encode()
        time_ns = NOW * _S + int(second * _S)
        name = source or f"__marshal-{partition}"
        rows.append(LogRow(name, partition, offset, offset, time_ns, None, value, is_append_time=is_append_time))
    return rows


def _with_time(text: str, second: float) -> str:
    start, brace, rest = text.partition("{")
    ahead, _, end = rest.partition("}")
    return f"{start}{NOW + int(second) + int(ahead or 0)}{end}" if brace else text


def write_segments(folder: Path, rows: Iterable[LogRow], topic: str = "__marshal") -> Path:
    """Write the records as a broker does, one batch each, into ``TOPIC-N/`` below `folder`; return the folder."""
    for row in rows:
        path = folder / f"{topic}-{row.partition}" / f"{0:020}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        record = Record(row.key, row.value, row.time_ns // 1_000_000)
        append_ms = record.timestamp if row.is_append_time else None
        with path.open("ab") as file:
            file.write(encode_batch([record], base_offset=row.offset, log_append_time=append_ms))
    return folder


def table(rows: list[LogRow]) -> pa.Table:
    return table_of(LogRow, rows)


def history_of(
    lines: Iterable[tuple[float, bytes | str]], judge: ClaimRules | None = None, **how: bool | int
) -> GroupHistory:
    """The history of the one group in a log, see `log_rows`."""
    [history], _ = marshal_histories(table(log_rows(lines, **how)), judge or ClaimRules())  # type: ignore[arg-type]
    return history


def live_log() -> list[LogRow]:
    """The recorded log; the records have no times."""
    rows = []
    for line in LIVE_LOG.read_text().splitlines():
        item = json.loads(line)
        if "marshal_partition" in item:
            partition, offset = item["marshal_partition"], item["offset"]
            value = item["value"].encode()
            rows.append(LogRow(f"__marshal-{partition}", partition, offset, offset, -1_000_000, None, value))
    return rows


def generated_log(seed: int, *, members: int = 6, partitions: int = 8, seconds: int = 900) -> list[LogRow]:
    """A log of two groups whose members start, restart, stop without a release, release, and write garbage.

    No sender looks at what the others hold, so that claims, heartbeats and releases are refused, too.
    """
    chosen = random.Random(seed)
    lines: dict[int, list[tuple[float, bytes | str]]] = {0: [], 1: [], 2: []}
    instance = {n: f"i{n}.0" for n in range(members)}
    held: dict[int, set[int]] = {n: set() for n in range(members)}
    for second in range(seconds):
        for n in range(members):
            group = f"g{n % 2}"
            topic = chosen.randrange(3)
            who = f"{instance[n]}/c{n}/{group}/topic{topic}"
            roll = chosen.random()
            if roll < 0.02:
                number = chosen.randrange(partitions)
                lines[topic].append((second, f"ClaimingPartition/1/{{}}/{who}/{number}"))
                lines[topic].append((second, f"Heartbeat/1/{{}}/{who}/{number}/{second}"))
                held[n].add(number)
            elif roll < 0.08 and held[n]:
                lines[topic].append((second, f"Heartbeat/1/{{}}/{who}/{chosen.choice(sorted(held[n]))}/{second}"))
            elif roll < 0.085 and held[n]:
                number = held[n].pop()
                lines[topic].append((second, f"ReleasingPartition/1/{{}}/{who}/{number}/{second}"))
            elif roll < 0.087:
                instance[n] = f"i{n}.{second}"
            elif roll < 0.088:
                held[n].clear()
            elif roll < 0.0885:
                lines[topic].append((second, f"ReleaseGroup/1/{{}}/a/admin/{group}//0/{NOW + second + 60}"))
            elif roll < 0.0895:
                lines[topic].append((second, chosen.choice([b"", b"junk", b"\xff\xfe", b"Heartbeat/1/2/3"])))
    return [row for number, each in lines.items() for row in log_rows(each, partition=number)]

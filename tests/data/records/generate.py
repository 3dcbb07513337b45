"""Prints foreign.jsonl: record batches and message sets as kafka-python and aiokafka encode them (README.md).

Needs kafka-python, aiokafka, lz4, zstandard, python-snappy, cramjam and xxhash; nothing of this project.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import aiokafka.record.default_records as aiokafka_v2
import aiokafka.record.legacy_records as aiokafka_legacy
import kafka.record.default_records as kafka_v2
import kafka.record.legacy_records as kafka_legacy

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
T = 1_700_000_000_000
UNIT = b"0123456789abcdef"

# name -> (batch options, [(offset, timestamp, key, value, headers)])
V2 = {
    "one": ({}, [(0, T, b"k", b"v", [])]),
    "nulls": ({}, [(0, T, None, None, []), (1, T, b"", b"", []), (2, T, None, b"x", []), (3, T, b"x", None, [])]),
    "headers": (
        {},
        [
            (0, T, b"k", b"v", [("trace", b"\x00\xff"), ("trace", b""), ("", None)]),
            (1, T + 1, b"k", b"v", [("gr\u00fc\u00dfe \u2713", b"1")] * 3),
        ],
    ),
    "timestamps": ({}, [(0, T, b"a", b"", []), (1, T + 90_000_000_000, b"b", b"", []), (2, T - 64, b"c", b"", [])]),
    "gaps": ({}, [(0, T, b"a", b"1", []), (7, T, b"b", b"2", []), (300, T, b"c", b"3", [])]),
    "idempotent": ({"producer_id": 4_000_000_001, "producer_epoch": 3, "base_sequence": 77}, [(0, T, b"k", b"v", [])]),
    "transactional": (
        {"producer_id": 9, "producer_epoch": 32767, "base_sequence": 2147483647, "is_transactional": 1},
        [(0, T, b"k", b"v", []), (1, T, b"k", b"w", [])],
    ),
    "many": ({}, [(n, T + n, b"key-%d" % n, b"value " * (n % 9), []) for n in range(60)]),
    "blocks": ({}, [(0, T, b"k", UNIT * 5000, [])]),
}
LEGACY = {
    "one": [(0, T, b"k", b"v")],
    "nulls": [(0, T, None, None), (1, T, b"", b""), (2, T, None, b"x"), (3, T, b"x", None)],
    "many": [(n, T + n, b"key-%d" % n, b"value " * (n % 9)) for n in range(30)],
    "blocks": [(0, T, b"k", UNIT * 5000), (1, T, b"k", UNIT * 2049)],
}


def hexed(value: bytes | None) -> str | list[str | int] | None:
    """Hex; a long value as [hex of the unit, how many times]."""
    if value is None:
        return None
    return [UNIT.hex(), len(value) // len(UNIT)] if len(value) > 10_000 else value.hex()


def v2(module: Any, codec: int, options: dict[str, int], rows: list[Any]) -> bytes:
    fields = {"is_transactional": 0, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1, **options}
    builder = module.DefaultRecordBatchBuilder(magic=2, compression_type=codec, batch_size=1 << 20, **fields)
    for offset, timestamp, key, value, headers in rows:
        assert builder.append(offset, timestamp, key, value, headers) is not None
    return bytes(builder.build())


def legacy(module: Any, magic: int, codec: int, rows: list[Any]) -> bytes:
    builder = module.LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset, timestamp, key, value in rows:
        assert builder.append(offset, timestamp, key, value) is not None
    return bytes(builder.build())


def main() -> None:
    for library, epoch, new, old in (
        ("kafka-python", 0, kafka_v2, kafka_legacy),
        ("aiokafka", -1, aiokafka_v2, aiokafka_legacy),
    ):
        source = f"{library} {version(library)}"
        for codec, codec_name in enumerate(CODECS):
            for name, (options, rows) in V2.items():
                if name == "blocks" and not codec:
                    continue  # it is about blocks of compressed bytes
                records = [
                    [o, t, hexed(k), hexed(v), [[hk, hexed(hv)] for hk, hv in headers]] for o, t, k, v, headers in rows
                ]
                case = {"source": source, "name": name, "magic": 2, "compression": codec_name}
                case |= {"partition_leader_epoch": epoch, "options": options, "records": records}
                data = v2(new, codec, options, rows)
                if data[22] & 7 != codec:
                    continue  # the library leaves plain what does not shrink
                case |= {"hex": data.hex()}
                print(json.dumps(case))
            for magic in (0, 1):
                if codec_name == "zstd" or (codec_name == "lz4" and magic == 0 and library == "aiokafka"):
                    continue  # neither library writes these
                for name, old_rows in LEGACY.items():
                    if name == "blocks" and not codec:
                        continue
                    records = [[o, t if magic else -1, hexed(k), hexed(v), []] for o, t, k, v in old_rows]
                    case = {"source": source, "name": name, "magic": magic, "compression": codec_name}
                    case |= {"options": {}, "records": records, "hex": legacy(old, magic, codec, old_rows).hex()}
                    print(json.dumps(case))


main()

"""Frames made to do harm, and buffers that outlive what they came from.

Memory: no batch takes more than `WORST` times the bytes of its frames, beside what its rows take. Dense frames, arrays
of the smallest elements there are, come nearest to it; frames that claim more than they hold take nothing.
"""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kcoord_wire as kw
from tests.support.backends import BACKENDS
from tests.support.column_rows import KAFKA, decoder, everything

WORST = 160
ROW = 16 * 16  # bytes of a row of JoinGroupResponse where it holds nothing


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


# JoinGroupResponse v0: error_code, generation_id, protocol_name, leader, member_id, members; v6 the same, flexible.
JOIN_0 = b"\0\0\0\0\0\1\0\1p\0\1l\0\1m"
JOIN_6 = b"\0\0\0\0\0\0\0\0\0\1\2p\2l\2m"
CLAIMS = [
    (0, JOIN_0 + b"\x7f\xff\xff\xff", "truncated", 15),
    (6, JOIN_6 + b"\xff\xff\xff\xff\x0f", "truncated", 16),
    (0, JOIN_0 + b"\xff\xff\xff\xfe", "length", 15),
    (0, JOIN_0 + b"\xff\xff\xff\xff", "null", 15),
    (6, JOIN_6 + b"\0\0", "null", 16),
    (0, b"\0\0\0\0\0\1\xff\xfe", "length", 6),
    (0, b"\0\0\0\0\0\1\x7f\xff" + b"x" * 40, "truncated", 6),
    (6, b"\0\0\0\0\0\0\0\0\0\1\xff\xff\xff\xff\x0fg", "length", 10),
    (6, b"\0\0\0\0\0\0\0\0\0\1\x82\x80\x80\x80\x80\0g", "varint", 10),
    (6, b"\0\0\0\0\0\0\0\0\0\1\x82\x00g", "varint", 10),
    (6, b"\0\0\0\0\0\0\0\0\0\1\5\xed\xa0\x80x", "utf8", 11),
    (6, JOIN_6 + b"\1\x7f\5\0", "truncated", 17),
    (6, JOIN_6 + b"\1" + b"\x80" * 20_000, "varint", 17),
]


def test_claimed_counts_allocate_nothing(backend: str) -> None:
    rows = [body for _, body, _, _ in CLAIMS for _ in range(70)]
    versions = pa.array([version for version, *_ in CLAIMS for _ in range(70)])
    made = decoder(backend, ["JoinGroupResponse"], form="message")
    batch = made.decode(pa.array(rows), versions=versions)
    batch.validate(full=True)
    assert batch.column("error").to_pylist() == [kind for *_, kind, _ in CLAIMS for _ in range(70)]
    assert batch.column("error_offset").to_pylist() == [offset for *_, offset in CLAIMS for _ in range(70)]
    assert batch.get_total_buffer_size() < len(rows) * ROW
    members = batch.column("JoinGroupResponse").field("members")
    assert len(members.values) == 0


def test_dense_elements_stay_within_a_multiple(backend: str) -> None:
    """1 MB of the smallest elements, nested: each of them is there, and no more than the bound."""
    n = 40_000
    # OffsetFetchResponse v8: groups of nothing, a byte or two each; then the same for topics of one group.
    groups = b"\0\0\0\0" + varint(n + 1) + b"\1\1\0\0\0" * n + b"\0"
    batch = decoder(backend, ["OffsetFetchResponse"], form="message").decode(pa.array([groups]), versions=8)
    assert batch.column("error").to_pylist() == [None]
    assert len(batch.column("OffsetFetchResponse").field("groups").values) == n
    assert batch.get_total_buffer_size() <= WORST * len(groups) + ROW
    # Everything v1 has structs whose version lacks most of what they hold: a byte a struct.
    made = decoder(backend, ["Oldest"], form="message", registry=everything())
    body = b"\0\0\0\0" + b"\0\0\0\0" + (30_000).to_bytes(2, "big") + b"\1" * 30_000
    batch = made.decode(pa.array([body]), versions=0)
    assert batch.column("error").to_pylist() == [None]
    assert batch.get_total_buffer_size() <= WORST * len(body) + ROW


def varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def test_a_frame_that_fails_at_its_end_leaves_nothing(backend: str) -> None:
    member = kw.JoinGroupResponseMember(member_id="m" * 30, metadata=b"x" * 100)
    body = kw.encode(kw.JoinGroupResponse(members=[member] * 500), 9)
    good = kw.encode(kw.JoinGroupResponse(leader="only"), 9)
    made = decoder(backend, ["JoinGroupResponse"], form="message")
    batch = made.decode(pa.array([good, body[:-1], body + b"x", good] * 50), versions=9)
    batch.validate(full=True)
    assert batch.column("error").to_pylist() == [None, "truncated", "trailing", None] * 50
    column = batch.column("JoinGroupResponse")
    assert len(column.field("members").values) == 0
    assert column.field("leader").to_pylist() == ["only", None, None, "only"] * 50


PROGRAM = """
import resource, pyarrow as pa
from kcoord_wire.codec.columns import ColumnDecoder
names = ["JoinGroupResponse", "FetchResponse", "MetadataResponse"]
made = ColumnDecoder(names, form="message")
made.decode(pa.array([b""]), keys=11, versions=0)  # what is imported and made once
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (48 << 20), size + (48 << 20)))
claims = [b"\\0\\0\\0\\0\\0\\1\\0\\1p\\0\\1l\\0\\1m\\x7f\\xff\\xff\\xff" + b"\\0" * 5000] * 100
for key in (11, 1, 3):
    made.decode(pa.array(claims), keys=key, versions=0)
print("fine")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
def test_claimed_counts_request_no_memory(name: str) -> None:
    """With little more address space than the process has, so that a large request could not be granted."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"KCOORD_WIRE_BACKEND": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


# ---- lifetimes


def requests(n: int) -> pa.Array:
    return pa.array([kw.encode_request(sync(i), 5, correlation_id=i, client_id="a client of ours") for i in range(n)])


def sync(i: int) -> Any:
    assignment = kw.SyncGroupRequestAssignment(member_id=f"a member that is long {i}", assignment=b"%d" % i * 9)
    return kw.SyncGroupRequest(group_id=f"a group that is long {i}", member_id="short", assignments=[assignment])


def test_views_keep_the_input(backend: str) -> None:
    made = decoder(backend, ["SyncGroupRequest"], views=True)
    frames = requests(300)
    batch = made.decode(frames)
    column = batch.column("SyncGroupRequest")
    kept = [column.field("group_id"), column.field("assignments").values.field("assignment")]
    law = [one.to_pylist() for one in kept]
    del batch, column, frames, made
    gc.collect()
    churn = [requests(300) for _ in range(5)]
    assert [one.to_pylist() for one in kept] == law
    assert law[0] == [f"a group that is long {i}" for i in range(300)]
    assert len(churn) == 5


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_views_into_more_than_a_view_reaches(backend: str, kind: pa.DataType) -> None:
    """An input of more than a gigabyte, nearly all of it under a null and never touched."""
    body = kw.encode_request(sync(7), 5, client_id="a client of ours")
    empty = (1 << 30) + (1 << 29) if kind == pa.binary() else 5 << 30
    memory = mmap.mmap(-1, empty + 20 * len(body))
    memory[empty:] = body * 20
    width = pa.int32() if kind == pa.binary() else pa.int64()
    offsets = pa.array([0, *(empty + i * len(body) for i in range(21))], width).buffers()[1]
    valid = pa.array([False] + [True] * 20).buffers()[1]
    frames = pa.Array.from_buffers(kind, 21, [valid, offsets, pa.py_buffer(memory)])
    batch = decoder(backend, ["SyncGroupRequest"], views=True).decode(frames)
    batch.validate(full=True)
    law = decoder(backend, ["SyncGroupRequest"]).decode(pa.array([None] + [body] * 20, pa.binary()))
    assert batch.to_pylist() == law.to_pylist()
    assert batch.column("error").null_count == 21


def test_batches_can_be_given_on(backend: str) -> None:
    """Through IPC, slicing, concatenation and a filter, as Spark and Parquet take them."""
    made = decoder(backend, KAFKA["request"], views=False)
    batch = made.decode(requests(100))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch.slice(10, 5))
    table = pa.ipc.open_stream(sink.getvalue()).read_all()
    assert table.slice(0, 100).combine_chunks().to_batches()[0].equals(batch)
    assert table.num_rows == 105
    even = batch.filter(pa.array([i % 2 == 0 for i in range(100)]))
    assert even.column("correlation_id").to_pylist() == list(range(0, 100, 2))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="the address sanitizer keeps what was freed for a while")
@pytest.mark.parametrize("views", [False, True])
def test_nothing_is_left_behind(views: bool) -> None:
    made = decoder(BACKENDS[-1], ["SyncGroupRequest", "HeartbeatRequest"], views=views)
    frames = pa.concat_arrays([requests(400)] * (25 if BACKENDS[-1] == "native" else 1))
    bad = pa.array([body.as_py()[:-3] for body in frames[:50]])
    for _ in range(5):
        made.decode(frames)
    gc.collect()
    before = resident()
    for _ in range(100):
        made.decode(frames)
        made.decode(bad)
    gc.collect()
    assert resident() - before < 48 << 20  # 100 batches of 1.5 MB and more


def test_threads_may_share_a_decoder(backend: str) -> None:
    made = decoder(backend, ["SyncGroupRequest"])
    inputs = [requests(50 + i) for i in range(4)]
    law = [made.decode(frames) for frames in inputs]
    found: list[list[pa.RecordBatch]] = [[] for _ in inputs]

    def work(i: int) -> None:
        found[i] = [made.decode(inputs[i]) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(batch.equals(law[i]) for i in range(len(inputs)) for batch in found[i])
    assert [len(batches) for batches in found] == [10] * len(inputs)

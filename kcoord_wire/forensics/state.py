"""The state of a reader of a growing log, as bytes that another process goes on from.

Law: the layout has a number in front of what depends on it, so that a state of another version is refused by name and
never misread.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

import pyarrow as pa

from kcoord_wire.forensics.model import arrow_schema

_SHOWN: Final = 40  # bytes of a state that is refused


def pack_state(kind: str, layout: int, content: Any) -> bytes:
    """Return the state of a reader.

    :param kind: of the reader
    :param layout: number of the layout of `content`
    """
    return f"{kind} {layout}\n".encode() + pickle.dumps(content, protocol=5)


def unpack_state(kind: str, layout: int, state: bytes) -> Any:
    """Return the content of a state. It is a pickle: take it from a checkpoint of your own only.

    :raises ValueError: it has another layout, or is of another kind
    """
    head, _, content = state.partition(b"\n")
    if head != f"{kind} {layout}".encode():
        raise _refusal(f"{head[:_SHOWN].decode('ascii', 'replace')!r}", f"'{kind} {layout}'")
    return pickle.loads(content)


def pack_rows(row: type, rows: pa.RecordBatch) -> bytes:
    """Return rows of a row type as a part of a state: compressed, with their schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_schema(row), options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_batch(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack_rows(row: type, packed: bytes) -> pa.RecordBatch:
    """Return the rows that `pack_rows` has packed.

    :raises ValueError: the row type had other columns
    """
    with pa.ipc.open_stream(packed) as stream:
        if stream.schema != arrow_schema(row):
            raise _refusal(f"other columns of {row.__name__}", "those that it writes")
        return stream.read_next_batch()


def _refusal(found: str, known: str) -> ValueError:
    return ValueError(
        f"the checkpoint has a state of {found}, and this kcoord_wire reads {known}: go on with the version that "
        "wrote it, or begin with a new checkpoint"
    )

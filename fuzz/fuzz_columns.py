"""Both column decoders make the same of any frames, which is what the message codec makes of each of them alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from unittest import mock

import pyarrow as pa

import kcoord_wire as kw
from fuzz.shapes import choose
from kcoord_wire.codec.columns import ColumnDecoder, Form
from kcoord_wire.codec.columns.shape import shape_of
from kcoord_wire.errors import DecodeError

REQUESTS = [f"{name}Request" for name in ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "Fetch")]
KEYS = {kw.registry[name].api_key for name in REQUESTS}


def check(data: bytes) -> None:
    """`data`: a message behind its selector; where the first two bytes are the key of one of `REQUESTS`, a frame body.

    The selector of a message has many spellings (`choose` takes it modulo the number of shapes), so both readings are
    within reach for every message. One of them for each input keeps the search twice as fast.
    """
    codec, version, body = choose(data)
    as_frame = int.from_bytes(data[:2], "big") in KEYS or not has_columns(codec.name)
    frame = data if as_frame else body
    # The frame among others of its kind, and cut: in a run that is walked side by side, and alone.
    rows = [frame] * 5 + [frame[: len(frame) // 2], frame]
    for strict in (True, False):
        if as_frame:
            verdict = alone(lambda: kw.decode_request(frame, strict=strict))  # noqa: B023
            same("", strict, "request", rows, verdict, None)
        else:
            verdict = alone(lambda: codec.decode(frame, version, strict=strict))  # noqa: B023
            same(codec.name, strict, "message", rows, verdict, version)


def same(name: str, strict: bool, form: Form, rows: list[bytes], verdict: object, version: int | None) -> None:
    frames = pa.array(rows, pa.binary())
    batches = [
        made.decode(frames) if version is None else made.decode(frames, versions=version)
        for made in decoders(name, strict, form)
    ]
    for batch in batches:
        batch.validate(full=True)
        # NaN is not equal to itself.
        assert batch.equals(batches[0]) or repr(batch.to_pylist()) == repr(batches[0].to_pylist())
    found = batches[0].column("error")[0].as_py(), batches[0].column("error_offset")[0].as_py()
    if form == "message" or batches[0].column("api_key")[0].as_py() in KEYS:
        assert found == verdict, (verdict, found)


@cache
def has_columns(name: str) -> bool:
    try:
        shape_of(kw.registry[name])
    except TypeError:
        return False
    return True


@cache
def decoders(name: str, strict: bool, form: Form) -> list[ColumnDecoder]:
    """The pure one, the native one, and the native one with views."""
    made = []
    for backend, views in (("python", False), ("native", False), ("native", True)):
        with mock.patch.dict(os.environ, KCOORD_WIRE_BACKEND=backend):
            made.append(ColumnDecoder([name] if name else REQUESTS, form=form, strict=strict, views=views))
    return made


def alone(call: Callable[[], object]) -> tuple[str | None, int | None]:
    try:
        call()
    except DecodeError as error:
        return error.kind, error.offset
    return None, None

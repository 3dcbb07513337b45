"""Heartbeats in numbers that Python could not send: beats.c, built beside everything else that is built, by ctypes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

from ..runner import build

ROOM = 8_000_000  # latencies that are kept


class _Result(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("beats", "errors", "skipped", "ns", "kept")),
        *((name, ctypes.c_int32) for name in ("code", "failed")),
    )


@dataclass(frozen=True)
class Beats:
    """What came of it.

    :ivar beats: heartbeats answered without an error
    :ivar skipped: paced: not sent because the one before on that connection had no answer yet
    :ivar seconds: how long it took
    :ivar p50: seconds from a request (paced: from when it was due) to its answer; the median
    :ivar p99: likewise, for 99 of 100
    """

    beats: int
    skipped: int
    seconds: float
    p50: float
    p99: float

    @property
    def rate(self) -> float:
        """Heartbeats a second."""
        return self.beats / self.seconds


@cache
def _library() -> ctypes.CDLL:
    built = build(Path(__file__).with_name("beats.c"), "beats.so", "-O2", "-shared")
    return ctypes.CDLL(str(built), use_errno=True)


def run_beats(
    fds: Sequence[int], requests: Sequence[bytes], answer_size: int, seconds: float, period: float = 0
) -> Beats:
    """Send each connection's heartbeat over and over for so many seconds.

    :param requests: one whole frame for each connection
    :param answer_size: bytes of an answer, its size field included; the last two are its error code
    :param period: seconds between two heartbeats of one connection; 0 sends the next when the answer is there
    :raises OSError: a connection has broken, or no answer came for ten seconds
    :raises RuntimeError: the server answered with an error
    """
    n = len(fds)
    offsets = (ctypes.c_int * (n + 1))(0, *accumulate(map(len, requests)))
    latencies = (ctypes.c_uint32 * ROOM)()
    result = _Result()
    _library().run_beats(
        (ctypes.c_int * n)(*fds),
        b"".join(requests),
        offsets,
        ctypes.c_int(n),
        ctypes.c_int(answer_size),
        ctypes.c_double(seconds),
        ctypes.c_double(period),
        latencies,
        ctypes.c_int64(ROOM),
        ctypes.byref(result),
    )
    if result.failed:
        raise OSError(result.failed, f"{os.strerror(result.failed)} after {result.beats} heartbeats")
    if result.errors:
        raise RuntimeError(f"{result.errors} heartbeats answered with errors, the first with {result.code}")
    if not result.kept:
        raise RuntimeError(f"no heartbeat was answered within {seconds} s")
    measured = sorted(latencies[: result.kept])
    at = [measured[int(share * (len(measured) - 1))] / 1e7 for share in (0.50, 0.99)]
    return Beats(result.beats, result.skipped, result.ns / 1e9, *at)

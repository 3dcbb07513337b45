"""Whatever a recording holds, each byte of it is in one record or in one damage, and records found are sound ones.

Reading goes on from any record as it went on before, and from the front of a file as far as it goes.
"""

from __future__ import annotations

import io

from fuzz.checksums import RECORD_MARKER, RECORDING_HEADER, mended_recording
from kcoord_wire.recorder.recording import Damage, Recorded, RecordingError, read_recording, scan_recording
from kcoord_wire.records.batch import crc32c


def check(data: bytes) -> None:
    """`data`: the bytes of a file; tried as they are, and with checksums that are right."""
    read(data)
    read(mended_recording(data))


def read(data: bytes) -> None:
    try:
        found = list(read_recording(io.BytesIO(data)))
    except RecordingError:
        assert int.from_bytes(data[8:10], "big") != 1, "a version that is not known"
        return
    at = 0 if found and not found[0].position else min(RECORDING_HEADER, len(data))
    for number, piece in enumerate(found):
        assert piece.position == at, "every byte is in one of them"
        if isinstance(piece, Recorded):
            assert data[at : at + 4] == RECORD_MARKER
            assert crc32c(data[at + 8 : piece.end]) == int.from_bytes(data[at + 4 : at + 8], "big")
            assert list(read_recording(io.BytesIO(data), start=piece.end)) == found[number + 1 :]
            at = piece.end
        else:
            assert piece.size > 0
            assert not piece.at_end or number == len(found) - 1
            at += piece.size
    assert at == len(data)
    tail = found[-1] if found and isinstance(found[-1], Damage) and found[-1].at_end else None
    passed = len(found) - (tail is not None)
    expected = 0 if not passed else len(data) if tail is None else tail.position
    assert scan_recording(io.BytesIO(data), 0, len(found) + 1) == (expected, passed)

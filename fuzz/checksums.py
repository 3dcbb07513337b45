"""Right checksums for what a fuzzer changed, so that its inputs reach what is behind the check."""

from __future__ import annotations

from kcoord_wire.records.batch import HEADER_SIZE, crc32c

RECORDING_HEADER = RECORD_HEADER = 36
RECORD_MARKER = b"\xf5KR\n"


def mended_segment(data: bytes) -> bytes:
    """A log segment with the checksum of each record batch made right, up to the first batch that is not whole."""
    mended = bytearray(data)
    at = 0
    while at + HEADER_SIZE <= len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if not at + HEADER_SIZE <= end <= len(data):
            break
        mended[at + 17 : at + 21] = crc32c(data[at + 21 : end]).to_bytes(4, "big")
        at = end
    return bytes(mended)


def mended_recording(data: bytes) -> bytes:
    """A recording with the checksums of its header and of each record made right."""
    mended = bytearray(data)
    if len(mended) >= RECORDING_HEADER:
        mended[32:36] = crc32c(bytes(mended[:32])).to_bytes(4, "big")
    at = mended.find(RECORD_MARKER)
    while 0 <= at <= len(mended) - RECORD_HEADER:
        end = at + RECORD_HEADER + int.from_bytes(mended[at + 8 : at + 12], "big")
        mended[at + 32 : at + 36] = crc32c(bytes(mended[at + 8 : at + 32])).to_bytes(4, "big")
        if end <= len(mended):
            mended[at + 4 : at + 8] = crc32c(bytes(mended[at + 8 : end])).to_bytes(4, "big")
        at = mended.find(RECORD_MARKER, end)
    return bytes(mended)

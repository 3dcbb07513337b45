"""Kafka frames out of captured network traffic.

- `read_capture`: the decoded frames of a pcap or pcapng file
- `read_raw_frames`: the same frames undecoded, with the damage of the file in its place
- `RawConversation`, `FrameDecoder`: the two halves, for the bytes of one connection from any source

Bytes go through `pcap` (packets of a file), `packets` (segments, tunnels), `tcp` (streams), `splitter` (frames) and
`conversation` (a connection). What Fetch shows without its records: `fetches`.

dpkt dissects the packets; it comes with the extra ``capture``, without which they raise `MissingLibraryError`.
"""

from kcoord_wire.capture.conversation import CaptureReport, RawConversation, RawFrame
from kcoord_wire.capture.frames import CapturedFrame, FrameDecoder, read_capture, read_raw_frames
from kcoord_wire.capture.pcap import CaptureError
from kcoord_wire.extras import MissingLibraryError

__all__ = [
    "CaptureError",
    "CaptureReport",
    "CapturedFrame",
    "FrameDecoder",
    "MissingLibraryError",
    "RawConversation",
    "RawFrame",
    "read_capture",
    "read_raw_frames",
]

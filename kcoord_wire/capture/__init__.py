"""Kafka frames out of captured network traffic.

Packets are dissected by dpkt, which the extra ``capture`` brings; without it they raise `MissingLibraryError`.
"""

from kcoord_wire.capture.conversation import CapturedFrame, CaptureReport, Conversation
from kcoord_wire.capture.frames import read_capture, read_raw_frames
from kcoord_wire.capture.pcap import CaptureError
from kcoord_wire.capture.raw import RawFrame
from kcoord_wire.extras import MissingLibraryError

__all__ = [
    "CaptureError",
    "CaptureReport",
    "CapturedFrame",
    "Conversation",
    "MissingLibraryError",
    "RawFrame",
    "read_capture",
    "read_raw_frames",
]

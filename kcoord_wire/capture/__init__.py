"""Kafka frames out of captured network traffic."""

from kcoord_wire.capture.conversation import CapturedFrame, CaptureReport, Conversation
from kcoord_wire.capture.frames import read_capture
from kcoord_wire.capture.pcap import CaptureError

__all__ = ["CaptureError", "CaptureReport", "CapturedFrame", "Conversation", "read_capture"]

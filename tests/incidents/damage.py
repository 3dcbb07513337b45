"""What happens to a capture before somebody reads it: lost packets, an end that is cut off, rotation, a wrong clock.

Laws:

* A seed says which packets; the same capture and seed give the same bytes.
* What is done to one group's packets only is done by the address of its host.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.support.rotation import cut, even_cuts

_HEADER, _PACKET = 24, 16
_ADDRESSES: Final = slice(_PACKET + 26, _PACKET + 34)
"""Of a packet's sender and receiver: in the IPv4 header behind the one of Ethernet."""


@dataclass(frozen=True)
class Damage:
    """One damage.

    :ivar how: empty, ``lost``, ``cut``, ``rotated`` or ``skewed``
    :ivar share: of the packets that are lost, or of the file that is cut off
    :ivar files: of a rotated capture
    :ivar skew_ms: by which the clock of one client's host is ahead, whose packets are in a file of their own
    :ivar overlaps: whether these are in the other file, too, by the right clock
    """

    how: str = ""
    seed: int = 0
    share: float = 0.0
    files: int = 1
    skew_ms: int = 0
    overlaps: bool = False

    @property
    def words(self) -> str:
        """What was done."""
        match self.how:
            case "lost":
                return f"{self.share:.1%} of the packets are lost"
            case "cut":
                return f"the last {self.share:.0%} are cut off"
            case "rotated":
                return f"rotated into {self.files} files"
            case "skewed":
                where = "in a second file, too" if self.overlaps else "in a file of their own"
                return f"one host's packets are {where}, by a clock {self.skew_ms} ms ahead"
        return ""

    def host(self, hosts: Sequence[str]) -> str | None:
        """The one of these hosts whose clock is wrong."""
        return random.Random(self.seed).choice(sorted(hosts)) if self.how == "skewed" and hosts else None

    def of(self, data: bytes, host: str | None) -> tuple[list[bytes], int | None]:
        """The files that are left of a capture or recording, and when the last one ends, where something is cut off.

        :param host: whose clock is wrong
        """
        match self.how:
            case "lost":
                return [self._lossy(data)], None
            case "cut":
                return self._cut(data)
            case "rotated":
                return cut(data, even_cuts(data, self.files)), None
            case "skewed":
                return self._skewed(data, host or ""), None
        return [data], None

    def _lossy(self, data: bytes) -> bytes:
        chance = random.Random(self.seed)
        return data[:_HEADER] + b"".join(each for each in packets(data) if chance.random() >= self.share)

    def _cut(self, data: bytes) -> tuple[list[bytes], int]:
        kept = data[: int(len(data) * (1 - self.share))]
        return [kept], time_ns(packets(kept)[-1])

    def _skewed(self, data: bytes, host: str) -> list[bytes]:
        address = bytes(map(int, host.split(".")))
        others, own = [], []
        for packet in packets(data):
            addresses = packet[_ADDRESSES]
            if address in (addresses[:4], addresses[4:]):
                own.append(_later(packet, self.skew_ms))
                if not self.overlaps:
                    continue
            others.append(packet)
        return [data[:_HEADER] + b"".join(others), data[:_HEADER] + b"".join(own)]


INTACT: Final = Damage()


def packets(data: bytes) -> list[bytes]:
    """The whole packets of a little-endian pcap file with microseconds, with their headers."""
    found, at = [], _HEADER
    while at + _PACKET <= len(data):
        end = at + _PACKET + struct.unpack_from("<I", data, at + 8)[0]
        if end > len(data):
            break
        found.append(data[at:end])
        at = end
    return found


def time_ns(packet: bytes) -> int:
    """When it was captured."""
    seconds, micros = struct.unpack_from("<II", packet)
    return seconds * 1_000_000_000 + micros * 1_000


def _later(packet: bytes, ms: int) -> bytes:
    at = time_ns(packet) + ms * 1_000_000
    return struct.pack("<II", at // 1_000_000_000, at % 1_000_000_000 // 1_000) + packet[8:]

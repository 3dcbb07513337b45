"""Which packets of a capture the reader of a share needs, from the headers of many packets at once.

    frames = RawFrames(share=Flows(range(0, 8)))

Laws:

* The packets that are yielded, and those that are passed over, are the ones that `capture.pcap` reads, in order. Where
  two neighbouring headers are not plausible by its rules, it reads that place itself.
* A packet is passed over only if `read_segment` makes a segment of it, and if the reader of the share does nothing with
  that: its connection is of another lane, has a known broker, and is none of the exceptions (`KnownBrokers`).
* A packet whose headers are none of the usual ones (tunnels, fragments, options of IPv6) is yielded, for the reader to
  decide: every share reads it.
* Memory holds a window of the file, and the headers of `_CHUNK` packets.
* What another process cuts off of the file is lost, as in `capture.pcap`.

A packet that is passed over takes 0.7 us, where one that is read and matched takes 26 (`python -m tests.bench flows`:
all of 8 shares, beyond one).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from kcoord_wire.capture.frames import KnownBrokers, Passed
from kcoord_wire.capture.lanes import LANES, halves, joined_lane, mixed, number_of
from kcoord_wire.capture.packets import (
    ETHERNET,
    ETHERTYPES_VLAN,
    LINK_IP,
    LINK_LOOP,
    LINK_NULL,
    LINK_SLL,
    LINK_SLL2,
    Endpoint,
)
from kcoord_wire.capture.pcap import (
    MAX_BLOCK,
    MAX_PACKET,
    MAX_TIME_NS,
    NANOSECONDS,
    NEAR,
    OF_TIME,
    BlockFile,
    ClassicFile,
    Packet,
)
from kcoord_wire.kernel.file_bytes import FileCutError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[np.int64]
    _Words = NDArray[np.uint64]
    _Marks = NDArray[np.bool_]

_CHUNK: Final = 1 << 16
_FIRST_CHUNK: Final = 1 << 8  # in which the first brokers are found, whose other packets are looked at one by one
_WINDOW: Final = 1 << 23  # bytes that are held
_SHORT: Final = 16  # packets that are read one by one in the time of a chunk of them
_PACKET_BLOCK: Final = 6
_BLOCK_HEAD: Final = 28  # of a packet block, before the packet
_BLOCK_FRAME: Final = 32  # the same, and the length behind it
_UNITS: Final = (1_000, 1_000_000, NANOSECONDS)  # ticks per second
_ETHERTYPE_AT: Final = {ETHERNET: 12, LINK_SLL: 14, LINK_SLL2: 0}
_LINK_HEADERS: Final = dict.fromkeys(LINK_IP, 0) | {
    ETHERNET: 14,
    LINK_SLL: 16,
    LINK_SLL2: 20,
    LINK_NULL: 4,
    LINK_LOOP: 4,
}
_ETHERTYPES_IP: Final = {4: 0x0800, 6: 0x86DD}
_VLAN_TAGS, _VLAN_TAG = 2, 4  # how many are read, and the bytes of one
_IPV4, _IPV6, _TCP = 4, 6, 6
_DWORD: Final = 4  # bytes, which the lengths of headers count
_SMALLEST_LENGTH: Final = 5  # of them in a header
_IPV4_HEADER, _IPV6_HEADER, _TCP_HEADER = 20, 40, 20
_SMALLEST: Final = _IPV4_HEADER + _TCP_HEADER
_WORD: Final = (1 << 64) - 1


class _Bytes:
    """Bytes of a file as numbers that begin at any place of them.

    :ivar held: the bytes
    """

    def __init__(self, held: bytes) -> None:
        self.held = held
        self._views: dict[str, NDArray[Any]] = {}

    def read(self, kind: str, at: _Numbers) -> _Numbers:
        """Return the numbers of a type that begin at these places, of which all bytes are there."""
        return self._at(kind, at).astype(np.int64)

    def words(self, kind: str, at: _Numbers) -> _Words:
        return self._at(kind, at).astype(np.uint64)

    def _at(self, kind: str, at: _Numbers) -> NDArray[Any]:
        if kind not in self._views:
            count = max(0, len(self.held) - np.dtype(kind).itemsize + 1)
            self._views[kind] = np.ndarray((count,), kind, self.held, strides=(1,))
        return self._views[kind][at]


@dataclass(slots=True)
class _Run:
    """Packets in the window whose headers are plausible, one behind the other.

    :ivar data: the window
    :ivar at: where the bytes of each begin in it
    :ivar sizes: how many bytes of each were captured
    :ivar lengths: how many it had
    :ivar times: nanoseconds since 1970
    :ivar links: their link types
    :ivar end: where the next header begins in the file
    :ivar near: `ClassicFile.near` behind them
    """

    data: _Bytes
    at: _Numbers
    sizes: _Numbers
    lengths: _Numbers
    times: _Numbers
    links: _Numbers
    end: int
    near: int | None = None


class _Runs(Protocol):
    def run(self, position: int, most: int) -> _Run:
        """Return packets from a position in the window on, as far as it has them and their headers are plausible."""


class _ClassicRuns:
    """Runs of packets in a classic file."""

    def __init__(self, file: ClassicFile) -> None:
        self._file = file

    def run(self, position: int, most: int) -> _Run:
        file, base, held = self._file, self._file.data.base, self._file.data.held
        data, size, end = _Bytes(held), file.size, file.data.size - base
        places = self._walk(held, position - base, most)
        starts = np.array(places[:-1], np.int64)
        seconds, fraction, captured, length = (
            data.read(file.order + "u4", starts + offset) for offset in (0, 4, 8, 12)
        )
        before = np.concatenate([seconds[:1] if file.near is None else [file.near], seconds[:-1]])
        ends = starts + size + captured
        sound = (fraction < file.fractions) & (captured <= length) & (length <= MAX_PACKET) & (ends <= end)
        sound &= np.abs(seconds - before) < NEAR
        # The next header has to be plausible, too, or the file to end, with the window.
        count = _leading(sound & (np.append(sound[1:], False) | ((ends == end) & (ends == len(held)))))
        times = seconds * NANOSECONDS + fraction * (NANOSECONDS // file.fractions)
        links = np.full(count, file.link_type, np.int64)
        near = int(seconds[count - 1]) if count else file.near
        ats, sizes, until = starts[:count] + size, captured[:count], base + places[count]
        return _Run(data, ats, sizes, length[:count], times[:count], links, until, near)

    def _walk(self, data: bytes, position: int, most: int) -> list[int]:
        size, unpack = self._file.size, struct.Struct(self._file.order + "I").unpack_from
        places = [position]
        last = len(data) - size
        while position <= last and len(places) <= most:
            position += size + unpack(data, position + 8)[0]
            places.append(position)
        return places


class _BlockRuns:
    """Runs of packet blocks in a pcapng file."""

    def __init__(self, file: BlockFile) -> None:
        self._file = file

    def run(self, position: int, most: int) -> _Run:
        order, base, held = self._file.order, self._file.data.base, self._file.data.held
        data, places = _Bytes(held), self._walk(held, position - base, most)
        starts, ends = (np.array(part, np.int64) for part in (places[:-1], places[1:]))
        sizes = ends - starts
        number, high, low, captured, length = (
            data.read(order + "u4", starts + offset) for offset in (8, 12, 16, 20, 24)
        )
        unit, link = self._interfaces(number)
        ticks = high << 32 | low
        good = (data.read(order + "u4", ends - 4) == sizes) & (unit > 0) & (high < 1 << 31)
        count = _leading(good & (ticks <= MAX_TIME_NS // np.maximum(unit, 1)))
        kept = np.minimum(captured, sizes - _BLOCK_FRAME)
        times = ticks * unit
        at = starts[:count] + _BLOCK_HEAD
        return _Run(data, at, kept[:count], length[:count], times[:count], link[:count], base + places[count])

    def _interfaces(self, number: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Nanoseconds of a tick, 0 where that is not simple, and link type of these interfaces."""
        known = self._file.interfaces
        units = [
            NANOSECONDS // each.ticks_per_second if each.ticks_per_second in _UNITS and not each.offset_seconds else 0
            for each in known
        ]
        at = np.minimum(number, len(known))
        return np.array([*units, 0])[at], np.array([*(each.link_type for each in known), 0])[at]

    def _walk(self, data: bytes, position: int, most: int) -> list[int]:
        unpack = struct.Struct(self._file.order + "II").unpack_from
        places = [position]
        last = len(data)
        while position + _BLOCK_FRAME <= last and len(places) <= most:
            kind, size = unpack(data, position)
            if kind != _PACKET_BLOCK or not _BLOCK_FRAME <= size <= MAX_BLOCK or size % 4 or position + size > last:
                break
            position += size
            places.append(position)
        return places


def _leading(good: _Marks) -> int:
    """How many of the first marks are set."""
    return len(good) if good.all() else int(np.argmin(good))


@dataclass(slots=True)
class _Side:
    """The senders, or the receivers, of segments."""

    high: _Words
    low: _Words
    port: _Words

    def are(self, endpoint: Endpoint) -> _Marks:
        high, low = halves(endpoint[0])
        found: _Marks = (self.port == endpoint[1]) & (self.low == low) & (self.high == high)
        return found

    def have(self, ports: frozenset[int]) -> _Marks:
        return np.isin(self.port, np.array(sorted(ports), np.uint64))


@dataclass(slots=True)
class _Segments:
    """Packets with a TCP segment.

    :ivar index: of each in its run
    :ivar is_long: whether the addresses are those of IPv6
    """

    index: _Numbers
    is_long: bool
    source: _Side
    destination: _Side


def segments_in(run: _Run) -> Iterator[_Segments]:
    """Yield the packets of which `read_segment` makes a segment, as far as their headers are the usual ones."""
    data, limits = run.data, run.at + run.sizes
    for link in np.unique(run.links).tolist():
        size = _LINK_HEADERS.get(link)
        if size is None:
            continue
        index = np.flatnonzero((run.links == link) & (run.sizes >= size + _SMALLEST))
        start = run.at[index] + size
        if link in _ETHERTYPE_AT:
            ethertype = data.read(">u2", run.at[index] + _ETHERTYPE_AT[link])
            for _ in range(_VLAN_TAGS):
                tagged = np.isin(ethertype, list(ETHERTYPES_VLAN))
                if not tagged.any():
                    break
                ethertype = np.where(tagged, data.read(">u2", start + 2), ethertype)
                start = start + _VLAN_TAG * tagged
            versions = {number: ethertype == wanted for number, wanted in _ETHERTYPES_IP.items()}
        else:
            found = data.read("u1", start) >> 4
            versions = {number: found == number for number in _ETHERTYPES_IP}
        for number, reader in ((_IPV4, _ipv4_in), (_IPV6, _ipv6_in)):
            of_version = versions[number]
            if of_version.any():
                yield reader(data, index[of_version], start[of_version], limits[index[of_version]])


def _ipv4_in(data: _Bytes, index: _Numbers, start: _Numbers, limit: _Numbers) -> _Segments:
    index, start, limit = _kept(start + _SMALLEST <= limit, index, start, limit)
    first = data.read("u1", start)
    tcp, end = start + (first & 15) * _DWORD, start + data.read(">u2", start + 2)
    good = (first >> 4 == _IPV4) & (first & 15 >= _SMALLEST_LENGTH) & (end > start)
    good &= data.read("u1", start + 9) == _TCP
    good &= data.read(">u2", start + 6) & 0x3FFF == 0  # no fragment
    index, start, tcp, end, limit = _kept(good, index, start, tcp, end, limit)
    index, start, tcp = _with_tcp(data, index, start, tcp, end, limit)
    none = np.zeros(len(index), np.uint64)
    sides = [
        _Side(none, data.words(">u4", start + place), data.words(">u2", port))
        for place, port in ((12, tcp), (16, tcp + 2))
    ]
    return _Segments(index, False, *sides)


def _ipv6_in(data: _Bytes, index: _Numbers, start: _Numbers, limit: _Numbers) -> _Segments:
    index, start, limit = _kept(start + _IPV6_HEADER + _TCP_HEADER <= limit, index, start, limit)
    size = data.read(">u2", start + 4)
    good = (data.read("u1", start) >> 4 == _IPV6) & (data.read("u1", start + 6) == _TCP) & (size > 0)
    index, start, size, limit = _kept(good, index, start, size, limit)
    tcp = start + _IPV6_HEADER
    index, start, tcp = _with_tcp(data, index, start, tcp, tcp + size, limit)
    sides = [
        _Side(data.words(">u8", start + place), data.words(">u8", start + place + 8), data.words(">u2", port))
        for place, port in ((8, tcp), (24, tcp + 2))
    ]
    return _Segments(index, True, *sides)


def _with_tcp(
    data: _Bytes, index: _Numbers, start: _Numbers, tcp: _Numbers, end: _Numbers, limit: _Numbers
) -> list[_Numbers]:
    """Keep the packets whose TCP header was captured, and ends before the packet of IP does."""
    index, start, tcp, end, limit = _kept(tcp + _TCP_HEADER <= limit, index, start, tcp, end, limit)
    size = (data.read("u1", tcp + 12) >> 4) * _DWORD
    payload = tcp + size
    return _kept((size >= _TCP_HEADER) & (payload <= end) & (payload <= limit), index, start, tcp)


def _kept(good: _Marks, *columns: _Numbers) -> list[_Numbers]:
    return list(columns) if good.all() else [column[good] for column in columns]


class Flows:
    """The packets that the reader of a share needs; see `Share`.

    :param lanes: of the connections whose frames are read
    :cvar window: see `Share`
    """

    window = _WINDOW

    def __init__(self, lanes: range) -> None:
        self.lanes = lanes
        self._is_own = np.isin(np.arange(LANES), np.array(lanes))

    def packets(
        self, file: ClassicFile | BlockFile, brokers: KnownBrokers, times: deque[int]
    ) -> Iterator[Packet | Passed]:
        """Yield the packets of a file in order, but for those that `brokers` lets pass over."""
        runs: _Runs = _ClassicRuns(file) if isinstance(file, ClassicFile) else _BlockRuns(file)
        position, size = file.start, file.data.size
        most = _SHORT - 1  # the first packet shows when what was lost between files had passed
        while position < size:
            with suppress(FileCutError):  # what is held is read; `step` reports the rest
                file.data.advance(position, self.window // 2)
            run = runs.run(position, most)
            count = len(run.at)
            most = min(_CHUNK, max(_FIRST_CHUNK, 2 * count))
            if count < _SHORT:
                packet, position = file.step(position)
                while packet is None and position < size:  # what is lost goes with the packet behind it
                    packet, position = file.step(position)
                if packet is not None:
                    yield packet
                    times.append(packet.time_ns)
                continue
            yield from _with_others(run, self._passed(run, brokers))
            times.extend(run.times[-OF_TIME:].tolist())
            position = run.end
            if isinstance(file, ClassicFile):
                file.near = run.near

    def _passed(self, run: _Run, brokers: KnownBrokers) -> _Marks:
        """Which packets of a run are passed over."""
        passed = np.zeros(len(run.at), np.bool_)
        needed = [sum(map(number_of, pair)) & _WORD for pair in brokers.exceptions()]
        for found in segments_in(run):
            numbers = [mixed(side.high, side.low, side.port) for side in (found.source, found.destination)]
            of_others = ~self._is_own[joined_lane(*numbers).astype(np.int64)]
            if brokers.ports is not None:
                known = found.source.have(brokers.ports) | found.destination.have(brokers.ports)
                of_others &= known & brokers.has_connections
            else:
                known = _are_known(found, brokers.brokers)
                of_others &= known
            if needed:
                of_others &= ~np.isin(numbers[0] + numbers[1], np.array(needed, np.uint64))
            passed[found.index] = of_others if brokers.ports is None else of_others | ~known
        return passed


def _are_known(found: _Segments, brokers: Collection[Endpoint]) -> _Marks:
    """Which segments are from or to a broker."""
    known = np.zeros(len(found.index), np.bool_)
    for broker in brokers:
        if (":" in broker[0]) == found.is_long:
            known |= found.source.are(broker) | found.destination.are(broker)
    return known


def _with_others(run: _Run, passed: _Marks) -> Iterator[Packet | Passed]:
    """Yield the packets of a run that are not passed over, and how many others come between them."""
    done, data = 0, run.data.held
    times = run.times.tolist()
    needed = np.flatnonzero(~passed)
    columns = (each[needed].tolist() for each in (run.at, run.sizes, run.lengths, run.links))
    for index, at, size, length, link in zip(needed.tolist(), *columns, strict=True):
        if index > done:
            yield index - done, times[index - 1]
        yield Packet(times[index], link, data[at : at + size], length)
        done = index + 1
    if len(times) > done:
        yield len(times) - done, times[-1]

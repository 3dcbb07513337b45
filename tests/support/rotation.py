"""Captures cut between packets into files, as tcpdump and dumpcap rotate them, and their analyses made comparable."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from kcoord_wire.forensics.analysis import Analysis, tables_of
from kcoord_wire.forensics.model import Evidence, Loss
from tests.support.pcapng import packet_blocks

_PCAP_HEADER, _PACKET_HEADER = 24, 16


def _places(data: bytes) -> list[int]:
    """Where the packets of a little-endian capture begin."""
    if data[:4] == b"\x0a\x0d\x0d\x0a":
        return packet_blocks(data)
    found, position = [], _PCAP_HEADER
    while position < len(data):
        found.append(position)
        position += _PACKET_HEADER + struct.unpack_from("<I", data, position + 8)[0]
    return found


def packet_count(data: bytes) -> int:
    return len(_places(data))


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The files of a capture that is cut before the packets of these numbers; each has the head of the whole."""
    places = _places(data)
    borders = [places[0], *(places[number] for number in cuts), len(data)]
    return [data[: places[0]] + data[start:end] for start, end in pairwise(borders)]


def without(data: bytes, first: int, end: int) -> bytes:
    """A capture without the packets from one number to another."""
    places = [*_places(data), len(data)]
    return data[: places[first]] + data[places[end] :]


def even_cuts(data: bytes, files: int) -> list[int]:
    count = packet_count(data)
    return sorted({count * number // files for number in range(1, files)} - {0})


def write(folder: Path, names: Sequence[str], files: Sequence[bytes]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in zip(names, files, strict=True):
        (folder / name).write_bytes(content)
    return [folder / name for name in names]


class Whole:
    """Names places in the files of a rotated capture as the whole has them.

    :param path: of the whole
    :param files: of the rotated capture
    :param cuts: as for `cut`
    """

    def __init__(self, path: Path, files: Sequence[Path], cuts: Sequence[int]) -> None:
        self._path = str(path)
        self._before = dict(zip(map(str, files), (0, *cuts), strict=True))

    def frame(self, row: dict[str, Any]) -> dict[str, Any]:
        assert row["capture"] in self._before
        place = {"source": self._path, "position": row["position"] + self._before[row["source"]], "capture": None}
        return row | place

    def tables(self, analysis: Analysis) -> dict[str, list[dict[str, Any]]]:
        """All tables but the losses, with the places of evidence in the whole."""
        seen: set[int] = set()
        for history in analysis.histories:
            for row in (*history.rebalances, *history.findings):
                for fact in row.evidence:
                    if id(fact) not in seen:
                        seen.add(id(fact))
                        self._place(fact)
        tables = tables_of(analysis.histories)
        return {name: table.to_pylist() for name, table in tables.items()}

    def losses(self, analysis: Analysis) -> list[Loss]:
        return [
            replace(loss, source=self._path, position=loss.position + self._before[loss.source])
            for loss in analysis.losses
        ]

    def _place(self, fact: Evidence) -> None:
        if fact.position is not None:
            fact.position += self._before[fact.source]
        fact.source = self._path if fact.source in self._before else fact.source


def plain_tables(analysis: Analysis) -> dict[str, list[dict[str, Any]]]:
    return {name: table.to_pylist() for name, table in tables_of(analysis.histories).items()}

"""The files of a rotated capture have the results of the whole."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.sources.files import find_sources, units
from kcoord_wire.forensics.sources.frames import read_frames, read_unit
from tests.support.pcapng import to_pcapng
from tests.support.rotation import Whole, cut, even_cuts, packet_count, plain_tables, without, write

CAPTURES = Path(__file__).parents[2] / "data" / "captures"
NAMES = [path.stem for path in sorted(CAPTURES.glob("*.pcap"))]
ROTATED = {
    "tcpdump -C": lambda number: "trace.pcap" + str(number or ""),
    "tcpdump -C -W": lambda number: f"trace.pcap{number:02}",
    "tcpdump -G": lambda number: f"trace-2024-05-01_12.{number // 60:02}.{number % 60:02}.pcap",
    "dumpcap": lambda number: f"trace_{number + 1:05}_202405011{200 + number // 60}{number % 60:02}.pcap",
}


def rows(batches: object) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("files", [2, 8, 60])
@pytest.mark.parametrize("program", ROTATED)
@pytest.mark.parametrize("name", NAMES)
def test_a_rotated_capture_is_one_source(tmp_path: Path, name: str, program: str, files: int) -> None:
    data = (CAPTURES / f"{name}.pcap").read_bytes()
    if program == "dumpcap":
        data = to_pcapng(data)
    whole = tmp_path / "whole.pcap"
    whole.write_bytes(data)
    cuts = even_cuts(data, files)
    parts = write(tmp_path / "parts", [ROTATED[program](number) for number in range(len(cuts) + 1)], cut(data, cuts))
    [unit] = units(find_sources([tmp_path / "parts"]))
    assert [source.path for source in unit] == parts
    place = Whole(whole, parts, cuts)
    found = rows(read_unit(parts, is_rotated=True))
    assert [place.frame(row) for row in found] == rows(read_frames(whole))
    assert {row["source"] for row in found} <= {str(path) for path in parts}
    rotated, expected = analyze([tmp_path / "parts"]), analyze([whole])
    assert place.tables(rotated) == plain_tables(expected)
    assert place.losses(rotated) == expected.losses
    assert rotated.counts | {"sources": 1, "bytes": 0} == expected.counts | {"bytes": 0}


def test_each_packet_may_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    whole = CAPTURES / "aiokafka.pcap"
    data = without(whole.read_bytes(), 300, packet_count(whole.read_bytes()))
    begun = tmp_path / "begun.pcap"
    begun.write_bytes(data)
    cuts = list(range(1, 300))
    parts = write(tmp_path / "parts", [f"trace.{number}.pcap" for number in range(300)], cut(data, cuts))
    place = Whole(begun, parts, cuts)
    assert [place.frame(row) for row in rows(read_unit(parts, is_rotated=True))] == rows(read_frames(begun))


def test_a_ring_of_packed_files_is_read_in_order_of_time(tmp_path: Path) -> None:
    whole = CAPTURES / "static_bounce.pcap"
    cuts = even_cuts(whole.read_bytes(), 8)
    names = [f"trace.pcap{(number + 5) % 8}" for number in range(8)]
    parts = write(tmp_path, names, cut(whole.read_bytes(), cuts))
    for part in parts[::2]:
        part.write_bytes(gzip.compress(part.read_bytes()))
    assert [[source.path for source in unit] for unit in units(find_sources([tmp_path]))] == [parts]
    place = Whole(whole, parts, cuts)
    assert [place.frame(row) for row in rows(read_unit(parts, is_rotated=True))] == rows(read_frames(whole))
    assert place.tables(analyze([tmp_path])) == plain_tables(analyze([whole]))


def test_a_missing_file_costs_what_was_in_it(tmp_path: Path) -> None:
    data = (CAPTURES / "eager_range.pcap").read_bytes()
    cuts = even_cuts(data, 5)
    parts = write(tmp_path, [f"trace.pcap{number}" for number in range(5)], cut(data, cuts))
    parts.pop(2).unlink()
    lacking = tmp_path / "lacking.pcap"
    lacking.write_bytes(without(data, cuts[1], cuts[2]))
    place = Whole(lacking, parts, [cuts[0], cuts[1], cuts[1] + cuts[3] - cuts[2]])
    found = [place.frame(row) for row in rows(read_unit(parts, is_rotated=True))]
    [noted] = [row for row in found if row["error"] == "1 file of the capture missing behind this one"]
    assert noted["position"] == cuts[1]
    expected = rows(read_frames(lacking))
    assert without_seq(row for row in found if row is not noted) == without_seq(expected)
    [loss] = [loss for loss in analyze([tmp_path / f"trace.pcap{n}" for n in (0, 1, 3, 4)]).losses if not loss.bytes]
    assert (loss.source, loss.what) == (str(parts[1]), noted["error"])


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_file_cut_short_costs_its_last_packet(tmp_path: Path, is_packed: bool) -> None:
    data = (CAPTURES / "cooperative.pcap").read_bytes()
    cuts = even_cuts(data, 4)
    files = cut(data, cuts)
    files[1] = files[1][:-7]
    parts = write(tmp_path, [f"trace.pcap{number}" for number in range(4)], files)
    if is_packed:
        parts[1].write_bytes(gzip.compress(parts[1].read_bytes()))
    lacking = tmp_path / "lacking.pcap"
    lacking.write_bytes(without(data, cuts[1] - 1, cuts[1]))
    place = Whole(lacking, parts, [cuts[0], cuts[1] - 1, cuts[2] - 1])
    found = rows(read_unit(parts, is_rotated=True))
    [noted] = [row for row in found if row["error"] and row["error"].startswith("byte ")]
    assert (noted["source"], noted["position"]) == (str(parts[1]), cuts[1] - cuts[0] - 1)
    assert without_seq(place.frame(row) for row in found if row is not noted) == without_seq(rows(read_frames(lacking)))


@pytest.mark.parametrize("spoiled", [b"", b"no capture any more", bytes(5000)])
def test_a_file_that_is_no_capture_any_more_costs_itself(tmp_path: Path, spoiled: bytes) -> None:
    data = (CAPTURES / "cooperative.pcap").read_bytes()
    cuts = even_cuts(data, 4)
    files = cut(data, cuts)
    files[1] = spoiled
    parts = write(tmp_path, [f"trace.pcap{number}" for number in range(4)], files)
    lacking = tmp_path / "lacking.pcap"
    lacking.write_bytes(without(data, cuts[0], cuts[1]))
    [[only], unit] = units(find_sources([tmp_path]))
    assert (only.path, [source.path for source in unit]) == (lacking, parts)
    place = Whole(lacking, parts, [cuts[0], cuts[0], cuts[0] + cuts[2] - cuts[1]])
    found = rows(read_unit(parts, is_rotated=True))
    [noted] = [row for row in found if row["source"] == str(parts[1])]
    assert (noted["position"], noted["lost"]) == (0, len(spoiled))
    assert noted["since_ns"] <= noted["time_ns"]
    assert without_seq(place.frame(row) for row in found if row is not noted) == without_seq(rows(read_frames(lacking)))


def test_captures_that_do_not_follow_at_once_stay_apart() -> None:
    """Of one incident each, minutes apart, under names with a number."""
    paths = [source.path for source in find_sources([str(CAPTURES.parent / "incidents" / "clients-*.pcap.gz")])]
    found = rows(read_unit(paths, is_rotated=True))
    assert len(paths) == 3
    assert [row | {"capture": None} for row in found] == [row for path in paths for row in rows(read_frames(path))]
    assert all(row["source"] == row["capture"] for row in found)


def test_captures_of_the_same_time_stay_apart(tmp_path: Path) -> None:
    """Of two hosts, by their names: each has connections of its own."""
    data = (CAPTURES / "cooperative.pcap").read_bytes()
    packets = packet_count(data)
    paths = write(tmp_path, ["host1.pcap", "host2.pcap"], [data, without(data, packets - 50, packets)])
    found = rows(read_unit(paths, is_rotated=True))
    assert [row | {"capture": None} for row in found] == [row for path in paths for row in rows(read_frames(path))]
    assert {(row["source"], row["capture"]) for row in found} == {(str(path), str(path)) for path in paths}


def test_files_with_a_number_alone_follow_at_once(tmp_path: Path) -> None:
    data = (CAPTURES / "cooperative.pcap").read_bytes()
    cuts = even_cuts(data, 3)
    parts = write(tmp_path / "rotated", ["a-1.pcap", "a-2.pcap", "a-3.pcap"], cut(data, cuts))
    write(tmp_path / "hosts", ["broker-0001.pcap", "broker-0002.pcap"], [data, data])
    write(tmp_path / "lacking", ["a-1.pcap", "a-3.pcap"], [cut(data, cuts)[0][:-3], cut(data, cuts)[2]])
    write(tmp_path / "newer", ["a-1.pcapng", "a-2.pcapng"], cut(to_pcapng(data), cuts[:1]))
    incidents = str(CAPTURES.parent / "incidents" / "clients-*.pcap.gz")
    found = [[source.path for source in unit] for unit in units(find_sources([tmp_path, incidents]))]
    assert [unit for unit in found if len(unit) > 1] == [
        [tmp_path / "newer" / "a-1.pcapng", tmp_path / "newer" / "a-2.pcapng"],
        parts,
    ]


def test_which_names_are_of_one_capture(tmp_path: Path) -> None:
    data = (CAPTURES / "cooperative.pcap").read_bytes()
    first, second = cut(data, even_cuts(data, 2))
    together = [
        ("kafka-0.pcap", "kafka-0.pcap1"),
        ("kafka-1_00001_20240501120000.pcap", "kafka-1_00002_20240501120100.pcap"),
        ("kafka-2_20240501120000_00001.pcap", "kafka-2_20240501120100_00002.pcap"),
        ("kafka-3-2024-05-01_12.00.00.pcap", "kafka-3-2024-05-01_12.01.00.pcap"),
        ("kafka-4-2024-05-01T12:00:00Z.pcap", "kafka-4-2024-05-01T12:01:00Z.pcap"),
        ("eth.1714560000.pcap", "eth.1714560060.pcap"),
        ("0001.pcap", "0002.pcap"),
    ]
    for names in together:
        write(tmp_path, names, [first, second])
    write(tmp_path / "deeper", ["0003.pcap"], [second])
    write(tmp_path, ["kafka-5.pcap", "other.pcap"], [first, second])
    linked = bytearray(second)
    linked[20] = 101  # another link type
    write(tmp_path, ["0003.pcap"], [bytes(linked)])
    found = [tuple(source.path.name for source in unit) for unit in units(find_sources([tmp_path]))]
    assert sorted(found) == sorted([*together, ("kafka-5.pcap",), ("other.pcap",), ("0003.pcap",), ("0003.pcap",)])


def without_seq(found: object) -> list[dict[str, object]]:
    return [{name: value for name, value in row.items() if name not in ("seq", "capture")} for row in found]

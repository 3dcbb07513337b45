"""`kcoord simulate variants`: the table, the JSON, the plot, and what it says about arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kcoord_wire.worlds.proposal.traffic import MEASURED, measure

Run = Callable[..., tuple[int, str, str]]
SMALL = ("simulate", "variants", "--members", "3,6")


def test_the_table_has_a_line_for_each_protocol_and_size(kcoord: Run) -> None:
    status, out, err = kcoord(*SMALL)
    assert (status, err) == (0, "")
    lines = [line for line in out.splitlines() if line.split("  ")[0].strip() in MEASURED]
    assert len(lines) == 2 * len(MEASURED)
    released = measure(MEASURED["released"], 6, 340)
    numbers = (released.to_coordinator, released.to_members, released.total)
    assert lines[-1].split() == ["released", "6", *(f"{number:,}" for number in numbers)]


def test_json_has_the_same_numbers(kcoord: Run) -> None:
    status, out, _ = kcoord(*SMALL, "--protocol", "single-assignor", "--metadata", "1000", "--format", "json")
    assert status == 0
    found = json.loads(out)
    assert found["metadata_bytes"] == 1_000
    names = ["single assignor", "single assignor, without GroupMembers"]
    assert [(each["protocol"], each["members"]) for each in found["results"]] == [(n, m) for n in names for m in (3, 6)]
    assert found["results"][0] == {
        "protocol": names[0],
        "members": 3,
        **(traffic := measure(MEASURED[names[0]], 3, 1_000))._asdict(),
        "total": traffic.total,
    }


def test_the_plot_has_a_line_for_each_protocol(kcoord: Run, tmp_path: Path) -> None:
    svg, png = tmp_path / "traffic.svg", tmp_path / "traffic.png"
    assert kcoord(*SMALL, "--plot", str(svg), "--plot", str(png))[0] == 0
    text = svg.read_text("utf-8")
    assert [name for name in MEASURED if name not in text] == []
    assert png.read_bytes().startswith(b"\x89PNG")


def test_the_document_has_the_numbers_of_the_command() -> None:
    """The column of ten members, measured again; the sizes above take minutes."""
    text = (Path(__file__).parents[2] / "docs" / "proposal-variants.md").read_text("utf-8")
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]
    published = {row[1]: row[2] for row in rows if row[-2] in ("the square", "the members")}
    again = {name: measure(measured, 10, 340).total for name, measured in MEASURED.items()}
    assert published.keys() == again.keys()
    for name, total in again.items():
        tolerance = 0.02 if "compressed" in name else 0  # another zlib compresses otherwise
        assert int(published[name].replace(",", "")) == pytest.approx(total, rel=tolerance, abs=0)

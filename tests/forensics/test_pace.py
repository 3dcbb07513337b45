"""Progress within a source, and what a stop leaves unread."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.pace import Pace
from kcoord_wire.forensics.sources.files import Source

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
MOVES = CAPTURES / "incidents" / "moves.pcap.gz"


def test_progress_rises_within_a_capture() -> None:
    seen: list[tuple[str, int, int]] = []
    analyze([MOVES], progress=lambda *step: seen.append(step))
    shares = [done / total for _, done, total in seen]
    assert len(shares) > 5
    assert all(earlier <= later for earlier, later in pairwise(shares))
    assert sum(0.1 < share < 0.9 for share in shares) > 3
    assert shares[-1] == 1


def test_a_stop_keeps_what_was_read() -> None:
    whole = analyze([MOVES])
    steps: list[int] = []
    part = analyze([MOVES], progress=lambda _, done, __: steps.append(done), stop=lambda: len(steps) > 4)
    assert whole.stopped is None
    assert part.stopped is not None
    assert 0.3 < part.stopped < 0.9
    assert 0 < part.counts["frames"] < whole.counts["frames"]
    assert part.losses[0].bytes == round((1 - part.stopped) * part.counts["bytes"])
    (history,) = part.histories
    assert history.rebalances
    assert not any(life.end == "closed" and life.left_ns == history.group.last_ns for life in history.members)


def test_sources_after_a_stop_are_losses(tmp_path: Path) -> None:
    sources = [Source(tmp_path / name, "pcap") for name in ("a", "b", "c")]
    for source in sources:
        source.path.write_bytes(bytes(100))
    stopped = False
    shown: list[int] = []
    pace = Pace(sources, lambda _, done, __: shown.append(done), lambda: stopped)
    assert pace.begin(sources[0])
    assert pace.begin(sources[1])
    assert pace.goes_on(10, 40)
    stopped = True
    assert not pace.goes_on(20, 40)
    assert not pace.begin(sources[2])
    assert shown == [0, 100, 125]
    assert [(Path(loss.source).name, loss.bytes) for loss in pace.losses] == [("b", 50), ("c", 100)]

"""All detectors together."""

from __future__ import annotations

from kcoord_wire.forensics.detectors import DETECTORS, detect
from kcoord_wire.forensics.importance import IMPORTANCE
from kcoord_wire.forensics.model import (
    Cause,
    Exchange,
    table_of,
)
from tests.support.detector_groups import generation, group, life, rebalance


def test_detect_returns_the_worst_first() -> None:
    everything = group(
        rebalances=[rebalance(n, n * 3.0, Cause.POLL_TIMEOUT) for n in range(1, 60)],
        generations=[generation(5, 0, 10, members=0), generation(1, 10)],
        members=[life("old"), life("new", protocol="consumer", assignors=[])],
    )
    found = detect(everything)
    assert [f.severity for f in found] == ["critical", "warning", "warning"]
    assert found[0].detector == "storm"
    assert detect(group()) == []
    assert detect(everything, table_of(Exchange, [])) == found


def test_every_detector_has_its_place_in_the_order() -> None:
    assert set(IMPORTANCE) == set(DETECTORS)
    assert len(IMPORTANCE) == len(DETECTORS)

"""A group that has settled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kcoord_wire.worlds.group.world import Cluster
from tests.support.clusters import QUICK, SHORT


@pytest.fixture
def three() -> Iterator[Cluster]:
    """Three members of a settled group, nine partitions."""
    with Cluster(1, topics={"orders": 9}, config=QUICK) as sim:
        for name in ("m1", "m2", "m3"):
            sim.member(name, **SHORT)
        sim.run_until(sim.is_settled)
        yield sim

"""The table of the variants."""

from __future__ import annotations

import pytest

from kcoord_wire.codec.registry import registry
from kcoord_wire.worlds.proposal.proposal_world import ProposalCluster
from kcoord_wire.worlds.proposal.single_assignor import RANGE, ROUND_ROBIN, VARIANTS
from tests.support import proposals


def test_each_variant_has_a_join_group_of_its_family() -> None:
    assert tuple(VARIANTS) == proposals.VARIANTS
    for variant in VARIANTS.values():
        assert registry.request(11, variant.family).name.endswith("JoinGroupRequest")


def test_the_strategies_are_those_of_kafka() -> None:
    assert [(each.name, each.version) for each in (RANGE, ROUND_ROBIN)] == [("range", 0), ("round-robin", 0)]


def test_another_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="no_such"):
        ProposalCluster("no_such", topics={"orders": 1})

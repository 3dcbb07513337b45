"""A bug that is planted in the code that a world runs is found by the law that it breaks, and each law has its bug."""

from __future__ import annotations

import re

import pytest

from kcoord_wire.kernel.virtual.clock import BREAKS
from kcoord_wire.worlds.central import draft_laws, rewrite_laws
from kcoord_wire.worlds.consumer_groups import consumer_group_laws
from kcoord_wire.worlds.group import answers, sessions
from kcoord_wire.worlds.group import laws as group_laws
from kcoord_wire.worlds.marshal import conduct, marshal_laws, range_laws
from kcoord_wire.worlds.transactions import laws as transaction_laws
from tests.support.planted import BUGS, Planted
from tests.support.planted_consumer_group_bugs import BY_SEARCH

LAWS = {
    "group": (group_laws, answers, sessions),
    "consumer-groups": (consumer_group_laws,),
    "transactions": (transaction_laws,),
    "central": (draft_laws,),
    "rewrite": (rewrite_laws,),
    "marshal": (marshal_laws, conduct),
    "marshal ranges": (range_laws,),
}
# Laws whose bug stands in a test of its own, for random scripts seldom bring it out.
ELSEWHERE = {
    "central": {"one owner"},  # central/test_owners.py
    "marshal": {"agreement"},  # marshal/test_observers.py
}


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_caught_by_its_law(bug: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    failure = bug.catch()
    assert failure.law in bug.laws
    last = str(failure).partition("\n# seed ")[0].splitlines()[-1]
    assert f" {BREAKS} " in last, "the trace ends with the event that broke the law"


@pytest.mark.parametrize("world", LAWS)
def test_each_law_has_a_bug_that_breaks_it(world: str) -> None:
    text = "".join(laws.__doc__ or "" for laws in LAWS[world])
    named = set(re.findall(r"^(?:\* )?``([\w ]+)``[ :,]", text, re.MULTILINE))
    broken = {law for bug in BUGS if bug.world == world for law in bug.laws}
    if world == "consumer-groups":
        broken |= {law for entry in BY_SEARCH for law in str(entry[1]).split("|")}
    assert named
    assert named - broken == ELSEWHERE.get(world, set())

"""`kcoord simulate bug`: the list, the damage with and without the bug, and the findings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcoord_wire.clients.bugs import CLIENT_BUGS

Run = Callable[..., tuple[int, str, str]]


def test_the_list_has_every_bug_with_its_versions(kcoord: Run) -> None:
    status, out, err = kcoord("simulate", "bug", "--list")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[::2]] == list(CLIENT_BUGS)
    assert "KAFKA-14639      since 3.0.0, fixed in 3.4.1, 3.5.0" in out
    assert "librdkafka#3891  open" in out


def test_a_bug_is_played_with_and_without_it(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "bug", "KAFKA-14639")
    assert status == 0
    assert "with the bug: two_owners 2" in out
    assert "without: two_owners 0" in out
    assert CLIENT_BUGS["KAFKA-14639"].reference in out


def test_explain_shows_what_the_frames_say(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "bug", "librdkafka#4783", "--explain")
    assert status == 0
    with_bug, without = out.split("\nwithout:")
    assert "stuck_completing (critical)" in with_bug
    assert "librdkafka 2.6.0 has a known bug that does this, librdkafka#4783, fixed in 2.6.1" in with_bug
    assert without.endswith("  no finding\n")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [((), "no bug is named; there are KAFKA-12983, "), (("KAFKA-1",), "no bug is called 'KAFKA-1'; there are ")],
)
def test_an_unknown_bug_ends_with_status_2(kcoord: Run, wrong: tuple[str, ...], sentence: str) -> None:
    status, out, err = kcoord("simulate", "bug", *wrong)
    assert (status, out) == (2, "")
    assert sentence in err

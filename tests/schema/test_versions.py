"""Version ranges: what their text means, what is refused, and how they combine."""

from __future__ import annotations

import pytest

from kcoord_wire.schema.model import ALL, MAX_VERSION, NONE, Versions

RANGES = {"none": NONE, "3": Versions(3, 3), "0-9": Versions(0, 9), " 4+ ": Versions(4, MAX_VERSION), "0+": ALL}


def test_version_ranges_print_as_they_are_parsed() -> None:
    for text, versions in RANGES.items():
        assert Versions.parse(text) == versions
        assert str(versions) == text.strip()


@pytest.mark.parametrize("text", ["", "x", "-1", "3-", "+", "1,2", "9-0", "32768", "0-32768", "1 - 2", "٣"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version range"):
        Versions.parse(text)


def test_ranges_combine() -> None:
    assert Versions(0, 5) & Versions(3, 9) == Versions(3, 5)
    assert Versions(0, 2) & Versions(3, 9) == NONE
    assert list(Versions(2, 4)) == [2, 3, 4]
    assert not list(NONE)
    assert not NONE
    assert Versions(0, 5).covers(Versions(5, 5))
    assert Versions(0, 5).covers(NONE)
    assert not Versions(0, 5).covers(Versions(5, 6))
    assert 3 in Versions(3, 3)
    assert 4 not in Versions(3, 3)
    assert ALL.open_ended
    assert not Versions(0, 5).open_ended

"""Files of settings, and what a wrong one is answered; suggestions. The declarations are tested with their users."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.kernel.settings import SettingsError, read_rules, read_tables, suggestion


def test_rules_come_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("[[a]]\nx = 1\n[[a]]\nx = 2\n")
    assert read_rules(path, {"a": ["x"], "b": ["y"]}) == {
        "a": [(f"{path}: a[1]", {"x": 1}), (f"{path}: a[2]", {"x": 2})],
        "b": [],
    }


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a = 3", ": a", "rules are written [[a]]"),
        ("a = [3]", ": a[1]", "must be a table"),
        ("[[a]]\nz = 3", ": a[1].z", "unknown; there are x"),
        ("[[c]]", ": c", "unknown; there can be [[a]]"),
    ],
)
def test_wrong_rules_are_named(tmp_path: Path, text: str, where: str, what: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_rules(path, {"a": ["x"]})
    assert (caught.value.where, caught.value.what) == (f"{path}{where}", what)


def test_a_file_must_be_toml_in_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    for data in (b"\xff", b"= 3"):
        path.write_bytes(data)
        with pytest.raises(SettingsError) as caught:
            read_tables(path, {})
        assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("name", "text"), [("heartbeet", "did you mean Heartbeat?"), ("xyz", "there are Heartbeat, JoinGroup")]
)
def test_suggestions(name: str, text: str) -> None:
    assert suggestion(name, ["Heartbeat", "JoinGroup"]) == text

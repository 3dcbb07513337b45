"""Assignors of other packages, installed as a package is: a folder on the path with its entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord_wire.assignors import ASSIGNORS, MemberSubscription
from kcoord_wire.assignors.plugins import PluginError, find_assignor, installed_plugins

MODULE = """
from kcoord_wire.assignors import Assignor, RebalanceProtocol, round_robin

MINE = Assignor("mine", RebalanceProtocol.EAGER, round_robin)
NO_ASSIGNOR = "mine"
NO_FUNCTION = Assignor("mine", RebalanceProtocol.EAGER, None)
NO_PROTOCOL = Assignor("mine", "eager", round_robin)

def make():
    return Assignor("mine", RebalanceProtocol.EAGER, round_robin)

def fail():
    raise RuntimeError("no licence")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plugin_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(folder: Path, *entry_points: str, name: str = "shop") -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [each.replace(":", "plugin_of_a_test:") for each in entry_points]
    (info / "entry_points.txt").write_text("\n".join(["[kcoord_wire.assignors]", *lines]))


def test_an_assignor_of_a_plugin_is_found_by_name(package: Path) -> None:
    install(package, "mine = :MINE")
    assert list(installed_plugins()) == ["mine"]
    assignor = find_assignor("mine")
    assert assignor.assign({"t": 2}, {"m": MemberSubscription(["t"])}) == {"m": {"t": range(0, 2, 1)}}


def test_a_function_makes_one_for_each_consumer(package: Path) -> None:
    install(package, "mine = :make")
    assert find_assignor("mine") is not find_assignor("mine")


def test_own_assignors_need_no_plugin() -> None:
    assert find_assignor("range") is ASSIGNORS["range"]


def test_an_unknown_name_is_answered_with_those_there_are(package: Path) -> None:
    install(package, "mine = :MINE")
    with pytest.raises(PluginError, match=r"no assignor is called 'rnage'; there are range, .*sticky, mine"):
        find_assignor("rnage")


@pytest.mark.parametrize(
    ("entry_point", "text"),
    [
        ("mine = :GONE", "cannot be loaded: AttributeError"),
        ("mine = no_such_module:MINE", "cannot be loaded: ModuleNotFoundError"),
        ("mine = :fail", "cannot be loaded: RuntimeError: no licence"),
        ("mine = :NO_ASSIGNOR", "is no Assignor, but of type str"),
        ("mine = :NO_FUNCTION", "lacks a RebalanceProtocol or a function `assign`"),
        ("mine = :NO_PROTOCOL", "lacks a RebalanceProtocol or a function `assign`"),
        ("other = :MINE", "offers an assignor with the name 'mine'"),
    ],
)
def test_a_plugin_that_cannot_be_used(package: Path, entry_point: str, text: str) -> None:
    install(package, entry_point)
    with pytest.raises(PluginError, match=text) as caught:
        find_assignor(entry_point.split()[0])
    assert "of shop" in str(caught.value)


def test_a_plugin_may_not_take_the_name_of_another(package: Path) -> None:
    install(package, "mine = :MINE")
    install(package, "mine = :make", name="rival")
    with pytest.raises(PluginError, match="has the name of the assignor plug-in 'mine' of"):
        find_assignor("mine")


def test_a_plugin_may_not_take_the_name_of_one_of_ours(package: Path) -> None:
    install(package, "range = :MINE", "mine = :MINE")
    with pytest.raises(PluginError, match=r"'range' of shop .* has the name of an assignor of kcoord_wire"):
        find_assignor("mine")
    assert find_assignor("range") is ASSIGNORS["range"]

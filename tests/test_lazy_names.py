"""Names that import their module when they are first asked for."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from kcoord_wire.lazy_names import lazy_names


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A package with the name `fields` from a module, and a package in it."""
    made = types.ModuleType("made")
    module, inner = types.ModuleType("made.some"), types.ModuleType("made.inner")
    module.fields = ("a", "b")  # type: ignore[attr-defined] # a module made by hand
    for each in (made, module, inner):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    made.__path__ = []
    made.__getattr__, made.__dir__ = lazy_names("made", {"some": ("fields",)}, ("inner",))  # type: ignore[method-assign]
    return made


def test_a_name_is_found_and_kept(package: types.ModuleType) -> None:
    assert "fields" not in vars(package)
    assert package.fields == ("a", "b")
    assert vars(package)["fields"] is package.fields


def test_a_package_in_it_is_an_attribute(package: types.ModuleType) -> None:
    assert package.inner is sys.modules["made.inner"]


def test_names_are_listed_before_they_are_asked_for(package: types.ModuleType) -> None:
    assert {"fields", "inner"} <= set(dir(package))


def test_an_unknown_name_is_an_attribute_error(package: types.ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'made' has no attribute 'field'") as caught:
        _ = package.field
    assert (caught.value.name, caught.value.obj) == ("field", package)


@pytest.mark.parametrize("room", ["consumer", "coordinator", "marshal", "messages"])
def test_importing_a_room_imports_none_of_its_modules(room: str) -> None:
    program = f"import sys, kcoord_wire.{room} as room; print(all(n not in vars(room) for n in room.__all__[:1]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"

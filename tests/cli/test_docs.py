"""`kcoord docs`: which page it opens, where it looks, and what it says if the site is not there."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from kcoord_wire.cli import docs


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was given; checkout and installation are empty folders."""
    found: list[str] = []
    monkeypatch.setattr(docs, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.setattr(docs.sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(webbrowser, "open", lambda address: found.append(address) or True)
    return found


def built(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "index.html").touch()
    return folder


def test_the_browser_gets_the_first_page_or_that_of_a_message(kcoord, tmp_path: Path, opened: list[str]) -> None:
    site = built(tmp_path / "checkout" / "build" / "site")
    assert kcoord("docs") == (0, "", "")
    assert kcoord("docs", "joingroup") == (0, "", "")
    assert opened == [(site / "index.html").as_uri(), (site / "messages" / "JoinGroupRequest.html").as_uri()]


def test_where_opens_nothing(kcoord, tmp_path: Path, opened: list[str]) -> None:
    site = built(tmp_path / "prefix" / "share" / "doc" / "kcoord_wire")
    assert kcoord("docs", "--where") == (0, f"{site}\n", "")
    assert kcoord("docs", "PingRequest", "--where") == (0, f"{site / 'messages' / 'PingRequest.html'}\n", "")
    assert opened == []


def test_a_checkout_goes_before_an_installation(kcoord, tmp_path: Path, opened: list[str]) -> None:
    built(tmp_path / "prefix" / "share" / "doc" / "kcoord_wire")
    site = built(tmp_path / "checkout" / "build" / "site")
    assert kcoord("docs", "--where") == (0, f"{site}\n", "")


def test_what_is_not_built_is_said(kcoord, tmp_path: Path, opened: list[str]) -> None:
    status, out, err = kcoord("docs")
    assert (status, out, opened) == (1, "", [])
    assert err.startswith("kcoord: the documentation is not built: `make docs` in a checkout")
    assert str(tmp_path / "prefix" / "share" / "doc" / "kcoord_wire") in err


def test_no_browser_is_an_error(kcoord, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    site = built(tmp_path / "checkout" / "build" / "site")
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    assert kcoord("docs") == (1, "", f"kcoord: there is no browser to open {site / 'index.html'}\n")

"""`kcoord doctor`: what is shown, and what is a failure."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.cli import doctor
from kcoord_wire.codec.python import Program
from kcoord_wire.extras import extras, lacking

ROOT = Path(__file__).resolve().parents[2]
Kcoord = Callable[..., tuple[int, str, str]]


def test_the_golden_messages_are_those_of_other_implementations() -> None:
    lines = (ROOT / "tests" / "data" / "golden" / "kafka.jsonl").read_text("utf-8").splitlines()
    known = {(row["message"], row["version"], row["hex"]) for row in map(json.loads, lines)}
    assert {(type(message).__name__, version, data) for message, version, data in doctor.GOLDEN} < known


def test_everything_is_shown(kcoord: Kcoord) -> None:
    status, out, err = kcoord("doctor", "serve", "--format", "json")
    found = json.loads(out)
    assert (status, err, found["wrong"]) == (0, "", [])
    assert (found["version"], found["codec"], found["self_test"]["python"]) == (kw.__version__, kw.backend, "ok")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {*found["extras"], *doctor._OF_DEVELOPERS} == {*project["optional-dependencies"]}
    assert {*found["extras"]["explain"]["installed"]} == {"construct"}
    assert {"crc32c", "cramjam", "dpkt", "rich", "pyarrow"} <= {*found["extras"]["spark"]["installed"]}
    status, text, _ = kcoord("doctor")
    assert status == 0
    assert f"{found['version']}, {kw.backend} codec" in text
    assert "python codec: ok" in text


def test_an_extra_that_is_asked_for_has_to_be_there(kcoord: Kcoord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "lacking", lambda name: ["cramjam"] * (name in ("records", "serve")))
    assert kcoord("doctor", "explain")[0] == 0
    status, out, err = kcoord("doctor", "explain", "serve")
    assert (status, err) == (1, "kcoord: serve lacks cramjam: pip install 'kcoord_wire[serve]'\n")
    assert "records    lacks cramjam" in out
    status, _, err = kcoord("doctor", "serv")
    assert (status, err) == (2, "kcoord: there is no extra serv; did you mean serve?\n")


def test_a_package_that_is_not_installed_has_no_extras(kcoord: Kcoord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoord_wire.extras._PACKAGE", "kcoord_wire_elsewhere")
    extras.cache_clear()
    try:
        status, out, _ = kcoord("doctor")
        assert (status, lacking("serve")) == (0, [])
        assert "extras are unknown" in out
        assert kcoord("doctor", "serve")[0] == 2
    finally:
        extras.cache_clear()


def test_spark_needs_java(kcoord: Kcoord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoord_wire.kernel.java._candidates", lambda: iter([("PATH", None)]))
    assert kcoord("doctor")[0] == 0
    status, out, err = kcoord("doctor", "spark")
    assert status == 1
    assert "Java: none" in out
    assert err.startswith("kcoord: Spark needs Java 17 or newer, but PATH has none")


class Swapped(Program):
    """A codec that writes each message as another."""

    def encode(self, message: Any) -> bytes:
        return super().encode(message)[::-1]


class Forgetful(Program):
    """A codec that reads each message as an empty one."""

    def decode(self, *args: Any, **options: Any) -> Any:
        return type(super().decode(*args, **options))()


@pytest.mark.parametrize(("broken", "verb"), [(Swapped, "written"), (Forgetful, "read")])
def test_a_broken_codec_is_a_failure(
    kcoord: Kcoord, monkeypatch: pytest.MonkeyPatch, broken: type[Program], verb: str
) -> None:
    monkeypatch.setattr(doctor, "_programs", lambda: [("native", broken), ("python", Program)])
    status, out, err = kcoord("doctor")
    assert (status, err) == (1, f"kcoord: the native codec: JoinGroupRequest v6 is {verb} wrong\n")
    assert "python codec: ok" in out

"""`kcoord doctor`: what is installed, what is missing, and whether the codecs read and write as Kafka does.

Laws:

* Everything is looked at, whatever is missing: nothing here needs an extra.
* Status 1 means that a codec reads or writes wrong bytes, or that an extra that was named cannot be used. What is
  merely not installed is shown, and is no failure.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import kcoord_wire as kw
from kcoord_wire.cli.options import Argument, Command, Format, UsageError
from kcoord_wire.cli.output import print_json
from kcoord_wire.codec.backend import load_native
from kcoord_wire.extras import extras, installed_version, lacking
from kcoord_wire.kernel.settings import suggestion

if TYPE_CHECKING:
    from kcoord_wire.codec.backend import ProgramClass

_OF_DEVELOPERS: Final = ("dev", "native", "test")  # extras
_SPARK: Final = "spark"
_OK: Final = "ok"
_NOT_BUILT: Final = "not built, or KCOORD_WIRE_BACKEND=python"
_UNKNOWN: Final = "extras are unknown: the package is not installed, but found on the path"
GOLDEN: Final = (
    (
        kw.JoinGroupRequest(
            group_id="grüße-☃",
            session_timeout_ms=1,
            rebalance_timeout_ms=24,
            protocol_type="grüße-☃",
        ),
        6,
        "0c6772c3bcc39f652de29883000000010000001801000c6772c3bcc39f652de298830100",
    ),
    (
        kw.HeartbeatRequest(group_id="😀e", generation_id=1, member_id="orders"),
        2,
        "0005f09f9880650000000100066f7264657273",
    ),
    (
        kw.ShareGroupHeartbeatRequest(
            group_id="x", member_id="x", member_epoch=636_107_272, rack_id="x", subscribed_topic_names=["orders"]
        ),
        1,
        "0278027825ea3a08027802076f726465727300",
    ),
)
"""Messages with their version and the bytes that other implementations write."""


@dataclass(frozen=True, kw_only=True)
class Doctor(Command):
    """Show what is installed and what is missing, and test the codecs.

    examples:
      kcoord doctor
          versions, codec, extras, Java, and a test of the codecs
      kcoord doctor serve spark --format json
          the same as a JSON object; status 1 if one of these extras cannot be used
    """

    extra: Annotated[tuple[str, ...], Argument("EXTRA", "extras that have to work")] = ()
    format: Format = "text"

    def run(self) -> None:
        """Print what was found.

        :raises UsageError: there is no such extra
        :raises ValueError: a codec is wrong, or an extra that was named cannot be used
        """
        found = examined()
        if self.extra and not found["extras"]:
            raise UsageError(_UNKNOWN)
        for name in self.extra:
            if name not in found["extras"]:
                raise UsageError(f"there is no extra {name}; {suggestion(name, found['extras'])}")
        wrong = list(_wrong(found, self.extra))
        if self.format == "json":
            print_json({**found, "wrong": wrong})
        else:
            print("\n".join(_lines(found)))
        if wrong:
            raise ValueError("; ".join(wrong))


def examined() -> dict[str, Any]:
    """Return all that was found, as values for JSON."""
    return {
        "version": kw.__version__,
        "package": str(Path(kw.__file__).parent),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "codec": kw.backend,
        "self_test": {name: _tested(program) for name, program in _programs()},
        "extras": _extras(),
        "java": _java(),
    }


def _programs() -> Iterator[tuple[str, ProgramClass | None]]:
    """Each codec with what makes its programs; None where the native one is not there."""
    from kcoord_wire.codec.python import Program

    native = load_native("kcoord_wire._native")
    yield "native", None if native is None else native.Program
    yield "python", Program


def _tested(make: ProgramClass | None) -> str:
    """Return ``ok``, ``not built``, or what is wrong with a codec."""
    if make is None:
        return _NOT_BUILT
    for message, version, expected in GOLDEN:
        codec = kw.registry.by_class(type(message))
        program = make(codec.plan(version), codec.classes)
        data = bytes.fromhex(expected)
        if program.encode(message) != data:
            return f"{codec.name} v{version} is written wrong"
        if program.decode(data) != message:
            return f"{codec.name} v{version} is read wrong"
    return _OK


def _extras() -> dict[str, dict[str, Any]]:
    """Each extra with the versions of what it brings, and with what it lacks."""
    return {
        name: {
            "installed": {each: found for each in brought if (found := installed_version(each))},
            "lacks": lacking(name),
        }
        for name, brought in sorted(extras().items())
        if name not in _OF_DEVELOPERS
    }


def _java() -> dict[str, Any]:
    """The Java that programs would run on, or why there is none; whether the installed Spark runs on it."""
    from kcoord_wire.kernel.java import java_home, java_version

    try:
        home = java_home("Spark")
    except FileNotFoundError as error:
        return {"home": None, "version": None, "spark": str(error)}
    return {"home": str(home), "version": java_version(home), "spark": _spark_on(java_version(home))}


def _spark_on(java: int | None) -> str:
    """Return ``ok``, or why the installed Spark does not run on a Java of this major version."""
    if absent := [each for each in ("pyspark", "pyarrow", "pandas") if installed_version(each) is None]:
        return f"{absent[0]} is not installed"
    from kcoord_wire.spark.versions import SparkVersionError, check_java

    try:
        check_java(java or 0)
    except SparkVersionError as error:
        return str(error)
    return _OK


def _wrong(found: Mapping[str, Any], asked: tuple[str, ...]) -> Iterator[str]:
    tested = found["self_test"]
    for name, result in tested.items():
        if result not in (_OK, _NOT_BUILT):
            yield f"the {name} codec: {result}"
    for name in asked:
        if absent := found["extras"][name]["lacks"]:
            yield f"{name} lacks {', '.join(absent)}: pip install 'kcoord_wire[{name}]'"
        elif name == _SPARK and found["java"]["spark"] != _OK:
            yield found["java"]["spark"]


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"kcoord_wire {found['version']}, {found['codec']} codec, in {found['package']}"
    yield f"{found['python']}, {found['platform']}"
    yield ""
    for name, result in found["self_test"].items():
        yield f"{name} codec: {result}"
    yield ""
    if not found["extras"]:
        yield _UNKNOWN
    for name, each in found["extras"].items():
        state = f"lacks {', '.join(each['lacks'])}" if each["lacks"] else "ok"
        versions = ", ".join(f"{library} {version}" for library, version in each["installed"].items())
        yield f"{name:<10} {state}" + (f"; has {versions}" if versions else "")
    yield ""
    java = found["java"]
    yield f"Java: {java['version']} in {java['home']}" if java["home"] else "Java: none"
    yield f"Spark on it: {java['spark']}"

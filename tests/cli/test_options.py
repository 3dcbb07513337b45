"""Command lines as dataclasses, and the readers of their types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from kcoord_wire.cli.options import (
    Argument,
    Command,
    Format,
    Option,
    Positive,
    UsageError,
    decimal,
    parse_setting,
    parse_size,
    parse_topics,
    read_command,
    topics_of,
    whole,
)

_positive = whole(1)
_seconds = decimal("a number of seconds above 0", lambda seconds: 0 < seconds < 1e9)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_size, "500000", 500_000),
        (parse_size, "64K", 64 << 10),
        (parse_size, "16m", 16 << 20),
        (parse_size, "1G", 1 << 30),
        (_seconds, "0.5", 0.5),
        (_positive, "7", 7),
        (parse_setting, "a.b=c=d", ("a.b", "c=d")),
        (parse_setting, " a = b ", ("a", "b")),
        (parse_setting, "a=", ("a", "")),
    ],
)
def test_arguments_are_parsed(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (parse_size, ["", "K", "0", "-1", "1T", "1.5M", "1KK"]),
        (_seconds, ["", "x", "0", "-1", "nan", "inf", "1e9"]),
        (_positive, ["", "0", "-1", "1.0", "x", "9" * 30]),
        (whole(1, 5), ["0", "6"]),
        (parse_setting, ["", "a", "=b", " =b"]),
    ],
)
def test_wrong_arguments_are_rejected(parse: Callable[[str], object], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=f"^'{text}' is not "):
            parse(text)


@dataclass(frozen=True, kw_only=True)
class Count(Command):
    """Count the heartbeats
    of a capture.

    examples:
      kcoord count trace.pcap
    """

    file: Annotated[Path, Argument("FILE", "a capture")]
    more: Annotated[tuple[str, ...], Argument("MORE")] = ()
    group: Annotated[tuple[str, ...], Option("only this group", "ID")] = ()
    most: Annotated[Positive, Option("100% at most")] = 7
    from_: Annotated[str | None, Option("where it begins", one_of="side")] = None
    until: Annotated[str | None, Option("where it ends", one_of="side")] = None
    rules: Annotated[Literal["document", "library"] | None, Option("who judges", section="judging")] = None
    all: Annotated[bool, Option("count all")] = False
    format: Format = "text"

    def __post_init__(self) -> None:
        if self.all and self.group:
            raise UsageError("--all leaves no group out")

    @classmethod
    def notes(cls) -> str:
        return "notes:\n  one"


def read(*words: str) -> Count:
    return read_command(Count, "kcoord count", words, "commands:\n  none")


def test_fields_are_options() -> None:
    assert read("a") == Count(file=Path("a"))
    words = ("a", "b", "--group", "g", "--group=h", "--most", "3", "--from", "x", "--rules", "library")
    assert read(*words, "--format", "json") == Count(
        file=Path("a"), more=("b",), group=("g", "h"), most=3, from_="x", rules="library", format="json"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "the following arguments are required: FILE (see kcoord count --help)"),
        (("a", "--most", "0"), "argument --most: '0' is not a whole number from 1 up"),
        (("a", "--from", "x", "--until", "y"), "argument --until: not allowed with argument --from"),
        (("a", "--rules", "none"), "argument --rules: invalid choice: 'none'"),
        (("a", "--fromat", "json"), "there is no option --fromat; did you mean --format?"),
        (("--grup=g",), "there is no option --grup; did you mean --group?"),
        (("a", "--all", "--group", "g"), "--all leaves no group out"),
    ],
)
def test_bad_usage_is_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(*words)
    assert sentence in str(caught.value)


def test_after_two_dashes_and_with_spaces_words_are_arguments() -> None:
    assert read("--", "--grup").file == Path("--grup")
    assert read("--grup is no option").file == Path("--grup is no option")


def test_the_docstring_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    text = capsys.readouterr().out
    assert "\nCount the heartbeats of a capture.\n" in text
    assert text.endswith("\n\nexamples:\n  kcoord count trace.pcap\n\nnotes:\n  one\n\ncommands:\n  none\n")
    assert "100% at most (default: 7)" in text
    assert "judging:\n  --rules {document,library}" in text


def test_a_number_without_bounds_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Unbounded(Command):
        """Has none."""

        number: Annotated[int, Option("any")] = 0

    with pytest.raises(TypeError, match="int'> has no reader"):
        read_command(Unbounded, "kcoord", [])


def test_topics_may_be_in_one_text_or_several() -> None:
    given = [parse_topics("orders:12, payments:8"), parse_topics("a:b:1")]
    assert topics_of(given) == {"orders": 12, "payments": 8, "a:b": 1}
    with pytest.raises(UsageError, match="'orders' is given twice"):
        topics_of([parse_topics("orders:1,orders:2")])
    for text in ("", "orders", "orders:", ":1", "orders:x", "orders:1,"):
        with pytest.raises(ValueError, match="NAME:PARTITIONS"):
            parse_topics(text)


def test_a_former_name_works_and_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Renamed(Command):
        """Have an option with another name than once."""

        format: Annotated[Literal["text", "json"], Option("how", formerly="--log-format")] = "text"

    for words in (["--log-format", "json"], ["--format", "json"]):
        assert read_command(Renamed, "kcoord renamed", words).format == "json"
    with pytest.raises(SystemExit):
        read_command(Renamed, "kcoord renamed", ["--help"])
    assert "--log-format" not in capsys.readouterr().out
    with pytest.raises(UsageError, match="did you mean --format"):
        read_command(Renamed, "kcoord renamed", ["--log-formats", "json"])

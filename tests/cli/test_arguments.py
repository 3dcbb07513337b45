"""The types of arguments, and a command's parser."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from kcoord_wire.cli.arguments import (
    add_command,
    argument,
    parse_positive,
    parse_seconds,
    parse_setting,
    parse_size,
    parse_topics,
    topics_of,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_size, "500000", 500_000),
        (parse_size, "64K", 64 << 10),
        (parse_size, "16m", 16 << 20),
        (parse_size, "1G", 1 << 30),
        (parse_seconds, "0.5", 0.5),
        (parse_positive, "7", 7),
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
        (parse_seconds, ["", "x", "0", "-1", "nan", "inf", "1e9"]),
        (parse_positive, ["", "0", "-1", "1.0", "x"]),
        (parse_setting, ["", "a", "=b", " =b"]),
    ],
)
def test_wrong_arguments_are_rejected(parse: Callable[[str], object], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=f"^'{text}' is not "):
            parse(text)
        with pytest.raises(argparse.ArgumentTypeError, match=f"^'{text}' is not "):
            argument(parse)(text)


def test_a_command_has_help_examples_and_a_function() -> None:
    commands = argparse.ArgumentParser().add_subparsers()

    def run(args: argparse.Namespace) -> None:
        raise NotImplementedError

    command = add_command(commands, "serve", "run it", run, examples="examples:\n  one\n  two\n")
    assert command.parse_args([]).run is run
    assert "Run it." in command.format_help()
    assert command.format_help().endswith("examples:\n  one\n  two\n")


def test_topics_may_be_in_one_text_or_several() -> None:
    given = [parse_topics("orders:12, payments:8"), parse_topics("a:b:1")]
    assert topics_of(given) == {"orders": 12, "payments": 8, "a:b": 1}
    with pytest.raises(ValueError, match="'orders' is given twice"):
        topics_of([parse_topics("orders:1,orders:2")])
    for text in ("", "orders", "orders:", ":1", "orders:x", "orders:1,"):
        with pytest.raises(ValueError, match="NAME:PARTITIONS"):
            parse_topics(text)

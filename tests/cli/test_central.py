"""`kcoord central`: its commands."""

from __future__ import annotations

import pytest

from kcoord_wire.cli.main import build_parser, main


def test_it_needs_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["central"]) == 2
    assert "required: COMMAND" in capsys.readouterr().err


def test_each_command_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("serve", "status"):
        with pytest.raises(SystemExit):
            build_parser().parse_args(["central", command, "--help"])
        assert f"kcoord central {command} --zookeeper" in capsys.readouterr().out

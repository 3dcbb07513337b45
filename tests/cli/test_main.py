"""The command `kcoord`: its exit statuses, its errors, and its output to pipes and terminals."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import kcoord_wire as kw
from kcoord_wire.cli.main import COMMANDS, make_parser, parse

ROOT = Path(__file__).resolve().parents[2]
COOPERATIVE = str(ROOT / "tests" / "data" / "captures" / "cooperative.pcap")
HEARTBEAT = kw.encode(kw.HeartbeatRequest(group_id="billing"), 4).hex()


@pytest.mark.parametrize("redirect", ["<&-", ">&-"])
def test_closed_streams_are_one_line(redirect: str) -> None:
    command = f"{sys.executable} -m kcoord_wire schemas {redirect}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr in ("kcoord: standard input is closed\n", "kcoord: standard output is closed\n")


def test_strings_of_peers_are_escaped(kcoord) -> None:
    evil = kw.HeartbeatRequest(group_id="\x1b[2J\x9b31m[red]\u2028", member_id="ä→")
    data = kw.encode(evil, 4).hex()
    _, table, _ = kcoord("decode", data, "--api", "HeartbeatRequest", "--version", "4")
    _, line, _ = kcoord("decode", data, "--api", "HeartbeatRequest", "--version", "4", "--format", "json")
    for out in (table, line):
        assert not {"\x1b", "\x9b", "\u2028"} & set(out)
        assert "[red]" in out
        assert "ä→" in out
    assert json.loads(line)["value"]["GroupId"] == evil.group_id


def run(*argv: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "kcoord_wire", *argv],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_version_and_help_end_with_0() -> None:
    for argument in ("--version", "--help"):
        process = run(argument)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
        assert b"kcoord" in out


@pytest.mark.parametrize("group", ["", "central", "marshal"])
def test_a_group_of_commands_alone_shows_its_help(capsys: pytest.CaptureFixture[str], group: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(group.split())
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: kcoord {group}".rstrip())


def test_a_closed_pipe_is_not_an_error() -> None:
    process = run("capture", COOPERATIVE, "--format", "json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), error) == (141, b"")


def test_an_interrupt_ends_with_130(kcoord, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read=interrupted)))
    assert kcoord("decode", "-", "--api", "12", "--request", "--version", "4") == (130, "", "")


@pytest.mark.parametrize(
    "command",
    [
        ("decode", HEARTBEAT, "--api", "12", "--request", "--version", "4"),
        ("schemas", "12"),
        ("simulate", "variants", "--members", "2,3"),
    ],
)
def test_without_rich_the_same_is_printed(kcoord, command: tuple[str, ...]) -> None:
    """A base install has no library but the standard one."""
    program = (
        "import sys; sys.modules['rich'] = None; from kcoord_wire.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    for form in "text", "json":
        plain = subprocess.run(
            [sys.executable, "-c", program, *command, "--format", form],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert (0, plain.stdout, plain.stderr) == kcoord(*command, "--format", form)


def test_output_to_a_pipe_is_plain_utf_8() -> None:
    data = kw.encode(kw.HeartbeatRequest(group_id="größe"), 4).hex()
    environment = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "FORCE_COLOR": "1"}
    process = run("decode", data, "--api", "HeartbeatRequest", "--version", "4", env=environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert '"größe"'.encode() in out
    assert b"\x1b" not in out


def test_an_unexpected_error_is_one_line(kcoord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoord_wire.cli.capture.read_capture", lambda *_, **__: (1 << 99).to_bytes(8, "big"))
    assert kcoord("capture", COOPERATIVE) == (1, "", "kcoord: unexpected OverflowError: int too big to convert\n")


def examples(command: str, text: str) -> list[list[str]]:
    """The command lines in the help of a command, without those before and after it in a pipeline."""
    pattern = rf"^ +(?:.* \| )?kcoord ({command}(?: [^|>&\n]*)?)"
    return [shlex.split(line) for line in re.findall(pattern, text.replace("\\\n", " "), re.MULTILINE)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples_that_parse(
    kcoord, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        kcoord(*command.split(), "--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: kcoord {command} ")
    if COMMANDS[command][0]:
        assert examples(command, text)
    for line in examples(command, text):
        assert not COMMANDS[command][0] or parse(line), line


@pytest.mark.parametrize("command", ["schemas", "capture", "explain-line", "doctor", "completion", "man"])
def test_examples_that_need_no_cluster_run(kcoord, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Those of other commands need a broker, hours, or bytes that are too long for a help."""
    files = {"trace.pcap": COOPERATIVE}
    for words in examples(command, make_parser(command).format_help()):
        piped = io.BytesIO(b"Attempt to heartbeat failed since group is rebalancing\n")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(piped))
        status, out, _ = kcoord(*(files.get(word, word) for word in words))
        assert (status, bool(out)) == (0, True), words


def test_a_command_imports_no_other() -> None:
    program = "import sys; from kcoord_wire.cli.main import main; sys.exit(main(sys.argv[1:]))"
    shown = "; ".join(["import atexit, sys", "atexit.register(lambda: print(*sorted(sys.modules)))", program])
    for argument, loaded in (("--version", set()), ("explain", {"kcoord_wire.cli.messages"})):
        done = subprocess.run(
            [sys.executable, "-c", shown, argument], cwd=ROOT, capture_output=True, text=True, check=False
        )
        shared = {f"kcoord_wire.cli.{name}" for name in ("main", "options", "output")}
        modules = {name for name in done.stdout.split() if name.startswith("kcoord_wire.cli.")}
        assert modules == shared | loaded

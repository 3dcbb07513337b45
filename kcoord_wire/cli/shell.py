"""`kcoord completion` and `kcoord man`: what the parsers know, for shells and for man.

Laws:

* Everything is read from the parsers of `main.make_parser`: a new command or option is completed and documented.
* The scripts are text that needs nothing at run time, so that a press of Tab starts no Python. (A library that makes
  such scripts wants one tree of parsers, in which each option is declared for it once more.)
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Final, Literal, NamedTuple

import kcoord_wire as kw
from kcoord_wire.cli.options import Argument, Command

_FILES: Final = re.compile("FILE|DIR|SOURCE")
_WIDTH: Final = 78
_SYNOPSIS: Final = "kcoord \\- Kafka's consumer-group protocols, byte by byte"


class _Word(NamedTuple):
    """An option or an argument.

    :ivar flag: empty for an argument
    :ivar name: what its value is called
    :ivar choices: the values that it may have; empty for any, or none
    :ivar about: its help
    """

    flag: str
    name: str
    takes_value: bool
    choices: tuple[str, ...]
    is_file: bool
    about: str


class _Place(NamedTuple):
    """A command: its options and arguments, and the commands in it with their help."""

    words: tuple[_Word, ...]
    commands: Mapping[str, str]

    @property
    def takes_files(self) -> bool:
        return any(word.is_file for word in self.words if not word.flag)

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(choice for word in self.words if not word.flag for choice in word.choices)


@dataclass(frozen=True, kw_only=True)
class Completion(Command):
    """Print what completes command lines of kcoord in a shell.

    examples:
      kcoord completion bash > ~/.local/share/bash-completion/completions/kcoord
      kcoord completion zsh > ~/.zfunc/_kcoord
          with ~/.zfunc in fpath, before compinit
      kcoord completion fish > ~/.config/fish/completions/kcoord.fish
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], Argument("SHELL", "bash, zsh or fish")]

    def run(self) -> None:
        """Print the script."""
        print("\n".join(_SCRIPTS[self.shell](_places())))


@dataclass(frozen=True, kw_only=True)
class Man(Command):
    """Print the manual page of kcoord and all its commands.

    examples:
      kcoord man | man -l -
      kcoord man > ~/.local/share/man/man1/kcoord.1
    """

    def run(self) -> None:
        """Print the page as roff."""
        print("\n".join(_page()))


def _names() -> list[str]:
    from kcoord_wire.cli.main import COMMANDS

    return ["", *COMMANDS]


def _places() -> dict[str, _Place]:
    from kcoord_wire.cli.main import COMMANDS, make_parser

    places = {}
    for name in _names():
        prefix = f"{name} ".lstrip()
        inner = {
            each.removeprefix(prefix): about
            for each, (_, about) in COMMANDS.items()
            if each.startswith(prefix) and " " not in each.removeprefix(prefix)
        }
        places[name] = _Place(tuple(_words(make_parser(name))), inner)
    return places


def _words(parser: argparse.ArgumentParser) -> Iterator[_Word]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or action.metavar == "COMMAND":
            continue
        is_file = action.type is Path or bool(_FILES.search(str(action.metavar or "")))
        about = (action.help or "").replace("%%", "%")
        choices = tuple(map(str, action.choices or ()))
        flag = next((each for each in action.option_strings if each.startswith("--")), "")
        yield _Word(flag, str(action.metavar or action.dest), action.nargs != 0, choices, is_file, about)


# ---- the scripts


def _bash(places: Mapping[str, _Place]) -> Iterator[str]:
    yield "# bash completion of kcoord, made by: kcoord completion bash"
    yield "_kcoord() {"
    yield '  local current="${COMP_WORDS[COMP_CWORD]}" path="" words="" files="" i'
    yield "  for ((i = 1; i < COMP_CWORD; i++)); do"
    yield '    case "${path:+$path }${COMP_WORDS[i]}" in'
    yield f'      {"|".join(map(quote, filter(None, places)))}) path="${{path:+$path }}${{COMP_WORDS[i]}}" ;;'
    yield "      *) break ;;"
    yield "    esac"
    yield "  done"
    yield '  case "$path ${COMP_WORDS[COMP_CWORD-1]}" in'
    for name, word in _valued(places):
        line = f"    {quote(f'{name} {word.flag}')})"
        if word.is_file:
            yield f'{line} compopt -o filenames; COMPREPLY=($(compgen -f -- "$current")); return ;;'
        else:
            yield f'{line} COMPREPLY=($(compgen -W "{" ".join(word.choices)}" -- "$current")); return ;;'
    yield "  esac"
    yield '  case "$path" in'
    for name, place in places.items():
        known = [*place.commands, *place.values, *(word.flag for word in place.words if word.flag)]
        yield f'    {quote(name)}) words="{" ".join(known)}"; files="{"yes" * place.takes_files}" ;;'
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "  if [[ -n $files && $current != -* ]]; then"
    yield '    compopt -o filenames; COMPREPLY+=($(compgen -f -- "$current"))'
    yield "  fi"
    yield "}"
    yield "complete -F _kcoord kcoord"


def _zsh(places: Mapping[str, _Place]) -> Iterator[str]:
    yield "#compdef kcoord"
    yield "# zsh completion of kcoord, made by: kcoord completion zsh"
    yield "_kcoord() {"
    yield '  local place="" i; local -a found'
    yield "  for ((i = 2; i < CURRENT; i++)); do"
    yield '    case "${place:+$place }$words[i]" in'
    yield f'      ({"|".join(map(quote, filter(None, places)))}) place="${{place:+$place }}$words[i]" ;;'
    yield "      (*) break ;;"
    yield "    esac"
    yield "  done"
    yield '  case "$place $words[CURRENT-1]" in'
    for name, word in _valued(places):
        action = "_files" if word.is_file else f"compadd -- {' '.join(word.choices)}" if word.choices else ":"
        yield f"    ({quote(f'{name} {word.flag}')}) {action}; return ;;"
    yield "  esac"
    yield '  case "$place" in'
    for name, place in places.items():
        pairs = [*place.commands.items(), *((value, "") for value in place.values)]
        pairs += [(word.flag, word.about) for word in place.words if word.flag]
        found = " ".join(quote(f"{each}:{about}" if about else each) for each, about in pairs)
        files = " [[ $PREFIX == -* ]] || _files;" if place.takes_files else ""
        yield f"    ({quote(name)}) found=({found});{files} ;;"
    yield "  esac"
    yield "  _describe kcoord found"
    yield "}"
    yield 'if [[ $funcstack[1] == _kcoord ]]; then _kcoord "$@"; else compdef _kcoord kcoord; fi'


def _fish(places: Mapping[str, _Place]) -> Iterator[str]:
    yield "# fish completion of kcoord, made by: kcoord completion fish"
    yield f"set -g __kcoord_commands {' '.join(map(quote, filter(None, places)))}"
    yield "function __kcoord_at"
    yield "  set -l place ''"
    yield "  for word in (commandline -opc)[2..]"
    yield '    set -l longer (string trim -- "$place $word")'
    yield "    contains -- $longer $__kcoord_commands; and set place $longer; or break"
    yield "  end"
    yield '  test "$place" = "$argv[1]"'
    yield "end"
    yield "complete -c kcoord -f"
    for name, place in places.items():
        here = f"complete -c kcoord -n {quote(f'__kcoord_at {quote(name)}')}"
        for each, about in (*place.commands.items(), *((value, "") for value in place.values)):
            yield f"{here} -a {quote(each)} -d {quote(about)}"
        if place.takes_files:
            yield f"{here} -F"
        for word in place.words:
            if word.flag:
                value = (
                    " -r -F" if word.is_file else f" -x -a {quote(' '.join(word.choices))}" if word.takes_value else ""
                )
                yield f"{here} -l {word.flag[2:]} -d {quote(word.about)}{value}"


_SCRIPTS: Final[Mapping[str, Callable[[Mapping[str, _Place]], Iterator[str]]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}


def _valued(places: Mapping[str, _Place]) -> Iterator[tuple[str, _Word]]:
    """Each option that takes a value, with its command."""
    return ((name, word) for name, place in places.items() for word in place.words if word.flag and word.takes_value)


# ---- the manual page


def _page() -> Iterator[str]:
    from kcoord_wire.cli.main import make_parser

    yield f'.TH KCOORD 1 "{date.today()}" "kcoord {kw.__version__}" "User Commands"'
    yield ".SH NAME"
    yield _SYNOPSIS
    for name in _names():
        parser = make_parser(name)
        parser.formatter_class = partial(argparse.HelpFormatter, width=_WIDTH)  # of any terminal
        yield ".SH SYNOPSIS" if not name else f".SH {_roff(parser.prog).upper()}"
        yield from _verbatim(parser.format_usage().removeprefix("usage: "))
        yield ".SH DESCRIPTION" if not name else ".PP"
        yield _roff(parser.description or "")
        for word in _words(parser):
            yield ".TP"
            yield f".B {_roff(word.flag or word.name)}"
            yield _roff(word.about or ", ".join(word.choices) or "see above")
        if parser.epilog:
            yield ".PP"
            yield from _verbatim(parser.epilog)
    yield ".SH EXIT STATUS"
    yield "0 for success, 1 for bad input or a failure, 2 for bad usage, 130 after an interrupt, 141 with stdout closed"


def _verbatim(text: str) -> Iterator[str]:
    yield ".nf"
    yield from (_roff(line.rstrip()) or "\\&" for line in text.rstrip().splitlines())
    yield ".fi"


def _roff(text: str) -> str:
    """Text in which nothing is a request or an escape."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith((".", "\\(aq")) else escaped

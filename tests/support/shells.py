"""What a shell completes a command line of kcoord to, by the script that `kcoord completion` prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
COMPLETED: Final = {
    "kcoord dec": {"decode"},
    "kcoord simulate tran": {"transactions"},
    "kcoord decode --form": {"--format"},
    "kcoord decode --format ": {"text", "json"},
    "kcoord decode 00 --format j": {"json"},
    "kcoord completion f": {"fish"},
    "kcoord analyze pyproj": {"pyproject.toml"},
    "kcoord serve --tls-cert LICEN": {"LICENSE"},
    "kcoord serve --port ": set[str](),
    "kcoord nonsense": set[str](),
}
"""Command lines, and what is offered for their ends."""

_ASKS: Final = {
    # bash and zsh have functions for it that only run while a line is edited: what they would show is printed.
    "bash": """
compopt() { :; }
complete_line() {
  COMP_WORDS=($1); [[ $1 == *" " ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
  _kcoord && printf '%s\\n' "${COMPREPLY[@]}"
}
""",
    "zsh": """
compadd() { [[ $1 == -- ]] && shift; shown "$@" }
_files() { shown $PREFIX*(N) }
_describe() { shown "${(@)${(@P)2}%%:*}" }
shown() { for each in "$@"; do [[ $each == $PREFIX* ]] && print -r -- $each; done }
complete_line() {
  words=(${=1}); [[ $1 == *" " ]] && words+=("")
  CURRENT=$#words; PREFIX=$words[CURRENT]
  _kcoord
}
""",
    "fish": """
function complete_line
  complete -C $argv[1] | string replace -r '\\t.*' ''
end
""",
}


@cache
def script_of(shell: str) -> str:
    """Return what `kcoord completion` prints."""
    command = [sys.executable, "-m", "kcoord_wire", "completion", shell]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def completed(shell: str, lines: Sequence[str]) -> list[set[str]]:
    """Return what the shell offers for each of these lines; files are those of the checkout."""
    given = script_of(shell).replace("compdef _kcoord kcoord", ":")  # which compinit defines, for a shell that edits
    asked = [f"complete_line {line!r}; echo '=='" for line in lines]
    program = "\n".join([given, _ASKS[shell], *asked])
    done = subprocess.run([shell, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    return [set(each.split()) for each in done.stdout.split("==\n")[:-1]]

"""Compare the world state with recorded steps of the Go library: ``python -m tests.marshal.check_world FILE.jsonl.gz``.

Exits with 0 if each step is right, with 1 if one is wrong or there is none, with 2 if the file cannot be read.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

from tests.support.marshal_golden import check_world

SHOWN = 20


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m tests.marshal.check_world FILE.jsonl.gz", file=sys.stderr)
        return 2
    try:
        right, wrong = check_world(Path(arguments[0]))
    except (OSError, EOFError, zlib.error, ValueError, KeyError) as error:
        print(f"{arguments[0]}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    for line in wrong[:SHOWN]:
        print(line, file=sys.stderr)
    print(f"{right} steps right, {len({line.partition(':')[0] for line in wrong})} wrong")
    return 0 if right and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m kcoord_wire.schema.generate [--check]`: write kcoord_wire/messages from schemas/, or list stale files.

Exit status 0 if all files are up to date (or were written), 1 if --check found a file that is stale, missing or not
generated from a schema.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from kcoord_wire.errors import SchemaError
from kcoord_wire.schema.emit_classes import emit_modules
from kcoord_wire.schema.files import load_messages, schema_root

__all__ = ["main", "stale_files"]

MESSAGES: Final = Path(__file__).resolve().parent.parent / "messages"


def stale_files(root: Path, target: Path) -> dict[Path, str | None]:
    """The files that differ from the schemas, with the text that each should have (None: it should not exist)."""
    wanted = {target / name: text for name, text in emit_modules(load_messages(root), root).items()}
    stale: dict[Path, str | None] = {
        path: text for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    stale.update({path: None for path in target.rglob("*.py") if path not in wanted})
    return stale


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kcoord_wire.schema.generate", description="Write the message classes."
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; list stale files and exit 1 if there are any"
    )
    args = parser.parse_args(argv)
    try:
        stale = stale_files(schema_root(), MESSAGES)
    except SchemaError as error:
        print(error, file=sys.stderr)
        return 1
    for path, text in sorted(stale.items()):
        print(f"{'stale' if args.check else 'removed' if text is None else 'written'}: {path.relative_to(MESSAGES)}")
        if args.check:
            continue
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if args.check and stale:
        print("run `make regen`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

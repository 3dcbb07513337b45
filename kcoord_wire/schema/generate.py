"""`python -m kcoord_wire.schema.generate [--check] [SCHEMAS ... OUT]`: write message classes, or list stale files.

Without paths: kcoord_wire/messages from schemas/, and the sections of the wire pages (docs/wire-*.md). With paths: the
package OUT, of the messages of schema files, folders, jars and archives (those that `compile_schemas` takes), with the
schema files and a `registry` of the codecs; its name and place are the user's.

Laws:

* A file of OUT that this command did not write is neither replaced nor removed.
* Exit status 0 if all files are up to date (or were written), 1 if --check found a file that is stale, missing or not
  generated from a schema, or if a schema file is refused; the others are written all the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from kcoord_wire.errors import EncodeError, SchemaError
from kcoord_wire.schema.emit_classes import MARK, SCHEMAS, emit_modules
from kcoord_wire.schema.files import collect_messages, load_messages, schema_root
from kcoord_wire.schema.model import Message

MESSAGES: Final = Path(__file__).resolve().parent.parent / "messages"


def stale_files(wanted: Mapping[Path, str], target: Path) -> dict[Path, str | None]:
    """The files that differ from those wanted, with the text that each should have (None: it should not exist).

    :raises FileExistsError: a file that was not generated is in the place of one
    """
    stale: dict[Path, str | None] = {}
    for path, text in wanted.items():
        old = path.read_text(encoding="utf-8") if path.exists() else None
        if old is not None and path.suffix == ".py" and MARK not in old.replace("\n", " "):
            raise FileExistsError(f"{path} is not a generated file")
        if old != text:
            stale[path] = text
    for path in target.rglob("*.py"):
        if path not in wanted and MARK in path.read_text(encoding="utf-8").replace("\n", " "):
            stale[path] = None
    return stale


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kcoord_wire.schema.generate", description="Write the message classes."
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; list stale files and exit 1 if there are any"
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="SCHEMAS ... OUT", help="schema files, folders or archives; a package"
    )
    args = parser.parse_args(argv)
    *schemas, target = args.paths or [MESSAGES]
    if args.paths and not schemas:
        parser.error("the last path is the package to write: name the schemas before it")
    try:
        wanted, refused = _own_package(schemas, target) if schemas else (_messages(), {})
        stale = stale_files(wanted, target)
    except (SchemaError, EncodeError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    for refusal in refused.values():
        print(refusal, file=sys.stderr)
    _bring_up_to_date(stale, target, args.check)
    return 1 if refused or (args.check and stale) else 0


def _messages() -> dict[Path, str]:
    root = schema_root()
    messages = load_messages(root)
    modules = emit_modules(messages, root, "kcoord_wire.messages")
    return {MESSAGES / name: text for name, text in modules.items()} | _pages(messages, root.parent / "docs")


def _pages(messages: Mapping[str, Message], folder: Path) -> dict[Path, str]:
    """The wire pages of a checkout; an installation has none."""
    pages = sorted(folder.glob("wire-*.md"))
    if pages:
        from kcoord_wire.schema.emit_pages import emit_page  # needs construct, which packages of one's own do not
    return {page: emit_page(page.read_text(encoding="utf-8"), messages) for page in pages}


def _own_package(schemas: list[Path], target: Path) -> tuple[dict[Path, str], Mapping[str, SchemaError]]:
    """The files of a user's package, its schema files among them, and the schema files that are refused."""
    messages, refused = collect_messages(schemas)
    root = target / SCHEMAS
    copies = {name: replace(message, file=str(root / f"{name}.json")) for name, message in messages.items()}
    wanted = {target / name: text for name, text in emit_modules(copies, root).items()}
    return wanted | {Path(message.file): message.source for message in copies.values()}, refused


def _bring_up_to_date(stale: Mapping[Path, str | None], target: Path, check: bool) -> None:
    """Name the stale files, and write or remove them unless `check`."""
    for path, text in sorted(stale.items()):
        name = path.relative_to(target) if path.is_relative_to(target) else path.name
        print(f"{'stale' if check else 'removed' if text is None else 'written'}: {name}")
        if check:
            continue
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and stale and target == MESSAGES:
        print("run `make regen`", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())

"""The location of the schema files, and reading a folder of them.

The package's own files are in schemas/ of a checkout and in kcoord_wire/_schemas of a wheel (setup.py copies them).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kcoord_wire.errors import SchemaError
from kcoord_wire.schema.model import Message
from kcoord_wire.schema.reader import load_message

__all__ = ["load_messages", "schema_root"]


def schema_root() -> Path:
    """The folder of the package's own schema files.

    :raises FileNotFoundError: the installation lacks them
    """
    package = Path(__file__).resolve().parent.parent
    for root in (package / "_schemas", package.parent / "schemas"):
        if root.is_dir():
            return root
    raise FileNotFoundError(
        f"the schema files of kcoord_wire are missing: neither {package}/_schemas nor ../schemas is there"
    )


def load_messages(path: Path) -> Mapping[str, Message]:
    """Every message below a folder (or of one file), by name, in order of path. Reserved ids (validVersions none) are
    left out.

    :raises SchemaError: a file breaks a rule, two define one message, or there is no file at all
    :raises FileNotFoundError: `path` does not exist
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no schema file or folder {path}")
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    if not files:
        raise SchemaError("a schema folder holds at least one .json file", file=str(path))
    messages: dict[str, Message] = {}
    for file in files:
        message = load_message(file)
        if message.name in messages:
            raise SchemaError(f'"{message.name}" is defined by {messages[message.name].file} too', file=str(file))
        if message.versions:
            messages[message.name] = message
    return messages

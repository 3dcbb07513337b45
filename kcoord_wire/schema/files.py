"""The location of the package's schema files, and reading files, folders and archives of them.

The package's own files are in schemas/ of a checkout and in kcoord_wire/_schemas of a wheel (setup.py copies them).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from kcoord_wire.errors import SchemaError
from kcoord_wire.schema.model import Message
from kcoord_wire.schema.reader import read_message


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
    """Every message below a folder (or of one file or archive), by name, in order of path.

    :raises SchemaError: a file breaks a rule; otherwise as `collect_messages`
    """
    messages, refused = collect_messages([path])
    for error in refused.values():
        raise error
    return messages


def collect_messages(paths: Iterable[Path]) -> tuple[Mapping[str, Message], Mapping[str, SchemaError]]:
    """Every message of files, folders and archives, by name, in order of path; and what is wrong with the files that
    break a rule, by the name of the file without .json, which in Kafka is that of its message.

    Reserved ids (validVersions none) are left out.

    :param paths: .json files, folders of them, jars and other zip archives
    :raises SchemaError: a path that is a file breaks a rule, no file of a path keeps them all, or two files define one
        message
    :raises FileNotFoundError: a path does not exist
    """
    messages: dict[str, Message] = {}
    refused: dict[str, SchemaError] = {}
    for path in paths:
        read = [_message(file, content) for file, content in _contents(path)]
        errors = [one for one in read if isinstance(one, SchemaError)]
        if len(errors) == len(read):
            raise errors[0]
        for message in read:
            if isinstance(message, SchemaError):
                refused.setdefault(PurePosixPath(message.file).stem, message)
            elif message.name in messages:
                rule = f'"{message.name}" is defined by {messages[message.name].file} too'
                raise SchemaError(rule, file=message.file)
            elif message.versions:
                messages[message.name] = message
    return messages, refused


def _message(file: str, content: bytes) -> Message | SchemaError:
    try:
        return read_message(content, file)
    except SchemaError as error:
        return error


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each schema file that `path` stands for."""
    if path.is_dir():
        files = sorted(path.rglob("*.json"))
        if not files:
            raise SchemaError("a schema folder holds at least one .json file", file=str(path))
        yield from ((str(file), file.read_bytes()) for file in files)
        return
    if not path.exists():
        raise FileNotFoundError(f"there is no schema file or folder {path}")
    with path.open("rb") as source:
        start = source.read(4)
    if start[:2] != b"PK":  # no JSON begins so; zipfile takes 5 ms to import
        yield str(path), path.read_bytes()
        return
    from kcoord_wire.schema import archives

    if path.stat().st_size > archives.MAX_ARCHIVE:
        raise SchemaError(f"an archive of schemas has at most {archives.MAX_ARCHIVE} bytes", file=str(path))
    yield from ((f"{path}/{name}", text) for name, text in archives.schema_files(path.read_bytes(), str(path)))

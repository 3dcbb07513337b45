"""The state of a reader of a growing log, as bytes that another process goes on from.

Law: the layout has a number in front of what depends on it, so that a state of another version is refused by name and
never misread.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

_SHOWN: Final = 40  # bytes of a state that is refused


def pack_state(kind: str, layout: int, content: Any) -> bytes:
    """Return the state of a reader.

    :param kind: of the reader
    :param layout: number of the layout of `content`
    """
    return f"{kind} {layout}\n".encode() + pickle.dumps(content, protocol=5)


def unpack_state(kind: str, layout: int, state: bytes) -> Any:
    """Return the content of a state. It is a pickle: take it from a checkpoint of your own only.

    :raises ValueError: it has another layout, or is of another kind
    """
    head, _, content = state.partition(b"\n")
    if head != f"{kind} {layout}".encode():
        raise ValueError(
            f"the checkpoint has a state of {head[:_SHOWN].decode('ascii', 'replace')!r}, and this kcoord_wire reads "
            f"'{kind} {layout}': go on with the version that wrote it, or begin with a new checkpoint"
        )
    return pickle.loads(content)

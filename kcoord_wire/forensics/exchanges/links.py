"""What happens to connections, as rows of `Sighting`: opened, closed, broken off, refused, bytes missing.

Law: such a row of `Frame` carries no frame, and nothing of it is decoded.
"""

from __future__ import annotations

from typing import Any, Final

from kcoord_wire.forensics.model import Sighting, SightingKind

LINK_EVENTS: Final = ("opened", "closed", "reset", "refused")
"""Values of `Frame.direction` that are about the connection itself; each is the `SightingKind` of the same name."""

ENDS: Final = ("closed", "reset", "refused")
"""Those after which nothing of the connection follows."""


def link_sighting(frame: dict[str, Any], client_id: str | None) -> Sighting:
    """Return the row for such a frame.

    :param frame: a row of `Frame`, by column; damage only where it has `since_ns`
    :param client_id: of the connection, where it is known
    """
    since_ns = frame["since_ns"]
    kind = SightingKind(frame["direction"]) if since_ns is None else SightingKind.HOLE
    place = (frame["time_ns"], frame["source"], frame["connection"])
    return Sighting(*place, client_id, kind, by=frame["by"], text=frame["error"], since_ns=since_ns)

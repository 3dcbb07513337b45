"""Where the frames behind a claim are: the number of a packet in a capture, the byte of a recording.

Laws:

* Rules and detectors name a frame by source and seq; only this module looks its position up, once for a group.
* Evidence that no single frame shows, and that from records of a log, keeps None.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.model import Evidence, GroupHistory


def place_evidence(history: GroupHistory, exchanges: pa.Table) -> None:
    """Set `Evidence.position` in a history.

    :param exchanges: the group's rows of `Exchange`
    """
    wanted = [fact for fact in _evidence(history) if fact.seq >= 0]
    if not wanted:
        return
    seqs = pa.array({fact.seq for fact in wanted}, pa.int64())
    places: dict[tuple[str, int], int] = {}
    for seq, position in (("seq", "position"), ("answer_seq", "answer_position")):
        rows = exchanges.select(["source", seq, position])
        found = rows.filter(pc.is_in(rows[seq], seqs))
        columns = (found[name].to_pylist() for name in ("source", seq, position))
        places |= {(source, number): at for source, number, at in zip(*columns, strict=True) if at is not None}
    for fact in wanted:
        fact.position = places.get((fact.source, fact.seq))


def _evidence(history: GroupHistory) -> Iterator[Evidence]:
    for evidence in (*(row.evidence for row in history.rebalances), *(row.evidence for row in history.findings)):
        yield from evidence

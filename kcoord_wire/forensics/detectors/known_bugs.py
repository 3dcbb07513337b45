"""From what a detector found to a finding, with the known bugs of the clients that did it.

Law: a bug is named only where the damage has its shape (`ClientBug.detectors`, `assignors`, `requires`) and a suspected
member states a version that is known to have it (KIP-511). Either alone names nothing.
"""

from __future__ import annotations

from kcoord_wire.clients.bugs import CLIENT_BUGS, ClientBug, is_affected
from kcoord_wire.forensics.detectors.found import Found
from kcoord_wire.forensics.model import Finding, GroupHistory


def finding_of(detector: str, found: Found, history: GroupHistory) -> Finding:
    """Return the finding; its text and advice name the known bugs behind it."""
    plain = found._asdict()
    del plain["suspects"], plain["traits"]
    finding = Finding(group_id=history.group.group_id, detector=detector, **plain)
    for bug, software in known_bugs(detector, found, history):
        finding.known_bugs.append(bug.name)
        finding.text += f"; {software} has a known bug that does this, {bug.name}, fixed in {' and '.join(bug.fixed)}"
        finding.advice = f"Update {software} ({bug.reference}). {finding.advice}"
    return finding


def known_bugs(detector: str, found: Found, history: GroupHistory) -> list[tuple[ClientBug, str]]:
    """Return the bugs that explain what was found, each with the software of a suspected member that has it."""
    stated = sorted({life.software for life in history.members if life.member_id in found.suspects and life.software})
    chosen = {row.assignor for row in history.rebalances if row.number in found.rebalances}
    named = []
    for bug in CLIENT_BUGS.values():
        if detector not in bug.detectors or not set(bug.requires) <= found.traits:
            continue
        if bug.assignors and not chosen & set(bug.assignors):
            continue
        named += [(bug, software) for software in stated if is_affected(bug, software)][:1]
    return named

"""What is said of the sources themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcoord_wire.forensics.detectors.finding import DetectorResult, Seen, detector, lasting
from kcoord_wire.forensics.model import NS_PER_MS, Evidence

DIFFERENCE_MS: Final = 500


@detector(79, basis="frames")
def source_clocks(seen: Seen) -> Iterator[DetectorResult]:
    """Clocks of sources: the clock of one source is ahead of that of another, or behind.

    Normal are some milliseconds. Whatever is said of the group is said after the correction.

    Threshold: 500 ms; info.
    """
    for clock in seen.clocks:
        ahead = f"{lasting(abs(clock.ahead_ns))} {'ahead of' if clock.ahead_ns > 0 else 'behind'}"
        about = "" if clock.is_exact else "about "
        yield DetectorResult(
            severity="info",
            from_ns=seen.history.group.first_ns,
            subject=clock.source,
            text=f"the clock of {clock.source} is {about}{ahead} that of {clock.reference}, as {clock.shown_by} show; "
            "its times were corrected before anything else was computed",
            advice="Synchronise the clocks of these hosts (NTP): their logs are shifted against each other as well.",
            value=abs(clock.ahead_ns) / NS_PER_MS,
            threshold=DIFFERENCE_MS,
            evidence=[Evidence(seen.history.group.first_ns, clock.source, -1, f"{ahead} {clock.reference}")],
        )

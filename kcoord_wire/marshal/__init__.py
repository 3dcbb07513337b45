"""Marshal: consumers that coordinate through a topic of Kafka, without a coordinator.

Sources: Marshal PROTOCOL.md, and the measured behaviour of the Go library where the document is silent or differs.
"""

from __future__ import annotations

__all__: list[str] = []

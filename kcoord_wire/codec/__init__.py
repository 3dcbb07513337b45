"""The codec: the plan walked natively or in pure Python, the registry, frames and headers, dicts, and explanations."""

from __future__ import annotations

__all__: list[str] = []

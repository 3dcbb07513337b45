"""The codec: the plan walked natively or in pure Python, the registry, frames and headers, dicts, and explanations.

To change how bytes are read or written: `python` and _speedups/objects, with `diagnose` for the errors; for columns
_speedups/columns and `columns.pure`; the parity tests compare them. What a lazy array is: `lazy` and _speedups/objects.
How a connection is conducted: `connection`, and `pending` for which response answers which request, in captures, too.
"""

from __future__ import annotations

__all__: list[str] = []

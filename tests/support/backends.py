"""Which codecs a test runs with: both, or the pure one alone under ``KCOORD_WIRE_BACKEND=python``."""

from __future__ import annotations

import os

BACKENDS = ["python"] if os.environ.get("KCOORD_WIRE_BACKEND") == "python" else ["python", "native"]

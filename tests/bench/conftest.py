"""The options of bench_codec.py."""

from __future__ import annotations

import pytest

from .libraries import LIBRARIES


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("the codec's benchmark")
    group.addoption("--library", choices=LIBRARIES, default="native", help="what bench_codec.py measures")
    group.addoption("--frames", action="store_true", help="whole frames instead of bodies")
    group.addoption("--quick", action="store_true", help="tiny messages in bench_codec.py")

"""What is set for a worker's process: its garbage collector, and from where Arrow has memory."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pyarrow as pa
import pytest

from kcoord_wire.spark.sessions import BLOCKS
from kcoord_wire.spark.workers import begin_task, memory_given_back


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_modules_are_set_aside_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kcoord_one_more", ModuleType("kcoord_one_more"))
    begin_task()
    aside = gc.get_freeze_count()
    assert aside > 1_000
    gc.unfreeze()
    begin_task()
    assert gc.get_freeze_count() == 0
    monkeypatch.setitem(sys.modules, "kcoord_another", ModuleType("kcoord_another"))
    begin_task()
    assert gc.get_freeze_count() > 1_000


@pytest.mark.parametrize(("blocks", "expected"), [("65536", "system"), (None, pa.default_memory_pool().backend_name)])
def test_memory_goes_back_only_where_malloc_gives_it_back(
    blocks: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blocks is None:
        monkeypatch.delenv(BLOCKS, raising=False)
    else:
        monkeypatch.setenv(BLOCKS, blocks)
    usual = pa.default_memory_pool().backend_name
    with memory_given_back():
        assert pa.default_memory_pool().backend_name == expected
    assert pa.default_memory_pool().backend_name == usual

"""The Python processes in which Spark's tasks run: their garbage collector and their allocator.

    begin_task()
    with memory_given_back(): ...

Laws:

* What is set for the process has no effect on what other tasks of it, which may be anyone's, can do.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from kcoord_wire.spark.sessions import BLOCKS

_known = 0
"""Modules that were imported when what they hold was last set aside."""


def begin_task() -> None:
    """Set aside what imported modules hold, so that no garbage collection walks over it.

    Spark collects after each task: 54 ms with the hundred thousand objects of the libraries, 0.1 ms without. They are
    set aside again only when more were imported, because what else is in use at that moment is set aside with them.
    """
    global _known
    if len(sys.modules) != _known:
        gc.collect()
        gc.freeze()
        _known = len(sys.modules)


@contextmanager
def memory_given_back() -> Iterator[None]:
    """Have Arrow allocate by malloc where `BLOCKS` says that it gives freed blocks back.

    Arrow's own pool keeps them: a seventh more for a large group (154 and 135 resident bytes an exchange of one of
    1,200,000, mostly heartbeats). Malloc without that setting keeps more than that.
    """
    usual = pa.default_memory_pool()
    if BLOCKS in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(usual)

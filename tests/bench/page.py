"""docs/benchmarks.md: what each benchmark measured last, and the command that measures it again.

`python -m tests.bench.page` writes it from the latest.json of each benchmark.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import frames, report
from .assignors import report as assignors
from .columns import report as columns
from .compiled import report as compiled
from .record import __main__ as record
from .scale import report as scale
from .spark import report as spark
from .views import __main__ as views

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
HEAD = """\
# Benchmarks

Written by `python -m tests.bench.page` from the latest result of each benchmark; every section names the command that
measures it again, the machine and the date. A target that is not met is in a line "Missed:".
"""


@dataclass(frozen=True)
class Section:
    """A section of the page.

    :ivar command: measures it
    :ivar about: what it measures
    :ivar results: the folder of its latest.json
    :ivar summary: Markdown of what latest.json holds
    """

    title: str
    command: str
    about: str
    results: Path
    summary: Callable[[dict[str, Any]], str]

    def markdown(self) -> str:
        made = json.loads((self.results / "latest.json").read_text("utf-8"))
        return f"\n## {self.title}\n\n`{self.command}`: {self.about}\n\n{self.summary(made).strip()}\n"


SECTIONS = (
    Section(
        "The codec", "make bench", "encoding and decoding next to other libraries.", report.RESULTS, report.summary
    ),
    Section(
        "Whole frames", "make bench", "header and message next to other libraries.", frames.RESULTS, frames.summary
    ),
    Section(
        "The codec and compiled peers",
        "make bench-peers",
        "the same bodies in kafka-clients on the JVM and in franz-go's kmsg.",
        compiled.RESULTS,
        compiled.summary,
    ),
    Section(
        "Views",
        "make bench",
        "messages whose fields are read when they are asked for, next to decoding them.",
        views.RESULTS,
        views.markdown,
    ),
    Section(
        "Frames to Arrow columns",
        "make bench",
        "`ColumnDecoder` next to decoding into objects and to copying bytes.",
        columns.RESULTS,
        columns.summary,
    ),
    Section(
        "The recorder",
        "make bench",
        "`kcoord record` next to no proxy and to one that only forwards bytes.",
        record.RESULTS,
        record.markdown,
    ),
    Section(
        "Millions of frames",
        "make bench-size",
        "50 million frames through Spark and through plain Python to Parquet, next to counting their bytes.",
        spark.RESULTS,
        spark.summary,
    ),
    Section(
        "The coordinator",
        "make bench-scale",
        "thousands of members, next to Kafka's broker and to librdkafka's mock cluster.",
        scale.RESULTS,
        scale.summary,
    ),
    Section(
        "The assignors",
        "make bench-assignors",
        "next to kafka-clients on the JVM and to franz-go.",
        assignors.RESULTS,
        assignors.summary,
    ),
)


def page() -> str:
    """The whole page."""
    return HEAD + "".join(section.markdown() for section in SECTIONS)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

"""docs/benchmarks.md: what each benchmark measured last, and the command that measures it again.

`python -m tests.bench.page` writes it from the latest.json of each benchmark.
"""

from __future__ import annotations

import json

from .runner import BENCHES, ROOT, Bench, load

PAGE = ROOT / "docs" / "benchmarks.md"
HEAD = """\
# Benchmarks

Written by `python -m tests.bench.page` from the latest result of each benchmark; every section names the command that
measures it again, the machine and the date. A target that is not met is in a line "Missed:".
"""


def section(bench: Bench) -> str:
    """The section of a benchmark; nothing where it has none."""
    if bench.summary is None:
        return ""
    made = json.loads((bench.results / "latest.json").read_text("utf-8"))
    return f"\n## {bench.title}\n\n`{bench.command}`: {bench.about}\n\n{bench.summary(made).strip()}\n"


def page() -> str:
    """The whole page."""
    return HEAD + "".join(section(load(name)) for name in BENCHES)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

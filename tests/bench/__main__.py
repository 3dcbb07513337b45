"""Runs a benchmark: `python -m tests.bench NAME`, see `BENCHES`; each has `--out`, and `--help` names its options.

Writes latest.json (what was measured) and latest.md (what its report makes of it) into its folder of results or
`--out`.
"""

from __future__ import annotations

import argparse
import sys

from .runner import BENCHES, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="tests.bench", description="Measurements; make help lists the usual ones.")
    parser.add_argument("bench", choices=BENCHES)
    run(parser.parse_args(sys.argv[1:2]).bench, sys.argv[2:])

"""`python -m fuzz [target ...] --seconds N`: each target for N seconds under atheris, one after the other.

An input that breaks a target's law is written below build/fuzz/<target>/ and its path printed; the exit status is then
1. New inputs are kept there too, and the next run begins with them, unless it is told to begin afresh: with
fuzz/corpus/<target>/ alone, where what should stay for good belongs. At the end each target has a line, as below.
Needs atheris (`make fuzz` installs it beside the package in a separate environment). Python code alone guides the
search: the native core is led by the construct grammar and the pure codec, which walk the same bytes in `parity`.

    frames          180 s    214,530 inputs   coverage  1402   corpus   611   found 0
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py"))
BUILD = HERE.parent / "build" / "fuzz"
# The modules whose branches guide the search, where that is not the whole package: the codec has targets of its own,
# and counting its branches here as well halves the number of inputs per second.
CAPTURES = ["kcoord_wire.capture", "kcoord_wire.recorder", "kcoord_wire.forensics"]
GUIDED_BY = {
    "analyze": [*CAPTURES, "kcoord_wire.records"],
    "capture": CAPTURES,
    "times": ["kcoord_wire.forensics", "kcoord_wire.report"],
}
STATUS = re.compile(rb"#(\d+)\t.* cov: (\d+) .* corp: (\d+)")  # libFuzzer's, as it goes on
MAX_LENGTH = {
    "analyze": 8192,
    "capture": 8192,
    "connection": 1024,
    "framing": 512,
    "times": 256,
}  # of an input; others: 4096


def main() -> int:
    """Run the targets; 1 if one of them found something."""
    parser = argparse.ArgumentParser(prog="fuzz", description="Run fuzz targets under atheris.")
    parser.add_argument("targets", nargs="*", default=TARGETS, help="which: " + ", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--fresh", action="store_true", help="begin without the inputs that earlier runs have kept")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = sorted(set(options.targets) - set(TARGETS))
    if unknown:
        parser.error(f"there is no target {', '.join(unknown)}")
    if options.inside:
        run(options.targets[0], options.seconds)
        return 0
    lines, found = [], []
    for target in options.targets:
        print(f"== {target}", flush=True)
        if options.fresh:
            shutil.rmtree(BUILD / target / "corpus", ignore_errors=True)
        before = inputs(target)
        failed, line = watch(target, options.seconds)
        new = sorted(inputs(target) - before)
        lines.append(f"{line}   found {len(new)}{f' (exit status {failed})' if failed else ''}")
        if failed:
            found.append((target, new))
    print("==", *lines, sep="\n")
    for target, new in found:
        print(f"{target}: broken by", *new or ["(no input was written)"])
    return 1 if found else 0


def inputs(target: str) -> set[Path]:
    """Those that have broken its law, now or before."""
    return set((BUILD / target).glob("found-*"))


def watch(target: str, seconds: int) -> tuple[int, str]:
    """Run a target in a process of its own, show what it says, and give its exit status and the line about it."""
    command = [sys.executable, "-m", "fuzz", "--inside", target, "--seconds", str(seconds)]
    executed = coverage = corpus = 0
    with subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
            if status := STATUS.match(line):
                executed, coverage, corpus = map(int, status.groups())
    said = f"{target:<12} {seconds:>6} s {executed:>10,} inputs   coverage {coverage:>5}   corpus {corpus:>5}"
    return process.returncode, said


def run(target: str, seconds: int) -> None:
    """Fuzz one target in this process, which libFuzzer then ends."""
    import atheris

    with atheris.instrument_imports(include=["fuzz", *GUIDED_BY.get(target, ["kcoord_wire"])]):
        check = import_module(f"fuzz.fuzz_{target}").check
    kept = BUILD / target / "corpus"
    kept.mkdir(parents=True, exist_ok=True)
    flags = [
        f"-max_total_time={seconds}",
        f"-artifact_prefix={BUILD / target / 'found'}-",
        f"-max_len={MAX_LENGTH.get(target, 4096)}",
        "-timeout=20",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    atheris.Setup([f"fuzz_{target}", *flags, str(kept), str(HERE / "corpus" / target)], check)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())

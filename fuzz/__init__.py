"""Fuzz targets: each `fuzz_*.py` is one, opens with the law that it checks, and has `check`, which needs no fuzzer.

`check` takes any bytes and returns, or raises where the law does not hold. `python -m fuzz` lets atheris look for such
bytes; tests/fuzz runs `check` over fuzz/corpus/<target>/ and over inputs made from it.
"""

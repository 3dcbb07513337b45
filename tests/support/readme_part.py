"""The parts of the README that a program writes, each between marks: ``<!-- scale -->`` and ``<!-- /scale -->``."""

from __future__ import annotations

from pathlib import Path

__all__ = ["README", "fill_readme"]

README = Path(__file__).parents[2] / "README.md"


def fill_readme(part: str, text: str, readme: Path = README) -> None:
    """Put the text between the marks of that part. ValueError where the README has none."""
    start, end = f"<!-- {part} -->", f"<!-- /{part} -->"
    before, rest = readme.read_text("utf-8").split(start)
    readme.write_text(f"{before}{start}\n\n{text}\n\n{end}{rest.split(end)[1]}", "utf-8")

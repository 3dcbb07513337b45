"""`python -m docs.website FOLDER`: write the sources of the site, Markdown for Sphinx, into a folder that is made anew.

The pages of the repository keep their place, so that their links hold; the README is the home page. A file that a page
links to and that is no page is copied, so that the site needs no checkout beside it; a link to a folder becomes text.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from docs.website.api_pages import emit_api_pages
from docs.website.message_pages import emit_message_pages

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = "README.md"
_LINK: Final = re.compile(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
_PROGRAM: Final = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_TARGET: Final = re.compile(r'^<a id="(\w+)"></a>$', re.MULTILINE)
_ORPHAN: Final = "---\norphan: true\n---\n"
_TREE: Final = """
```{toctree}
:hidden:
:caption: On this site

messages/index
errors
kips
api/index
docs/README
```

```{toctree}
:hidden:
:caption: Project

ARCHITECTURE
CONTRIBUTING
CHANGELOG
SECURITY
schemas/README
```
"""


def main() -> int:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    write_sources(folder)
    return 0


def write_sources(folder: Path) -> None:
    """Write every page, and the files that pages link to."""
    listed = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in _pages()}
    pages = sources_of(listed)
    pages["index.md"] = pages.pop(HOME) + _TREE
    guides = [f"/{name}" for name in listed if name.startswith("docs/") and not name.endswith(HOME)]
    pages["docs/README.md"] += "\n".join(["\n```{toctree}", ":hidden:", "", *guides, "```\n"])
    pages |= emit_message_pages() | emit_api_pages(listed.values())
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            path.write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(ROOT / name, path)


def _pages() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield ROOT / "schemas" / "README.md"


def sources_of(listed: Mapping[str, str]) -> dict[str, str]:
    """Return pages whose links lead to what the site has, by their names in the repository.

    Pages that they link to are added; and of other files the names, with an empty text.
    """
    links = _Links(listed)
    while links.left:
        name = links.left.pop()
        if name.endswith(".md"):
            links.pages[name] = links.rewritten(name, _TARGET.sub(r"(\1)=", links.pages[name]))
    return links.pages


class _Links:
    """Pages, and the names of those whose links are not rewritten yet."""

    def __init__(self, listed: Mapping[str, str]) -> None:
        self.pages = dict(listed)
        self.left = list(listed)

    def rewritten(self, name: str, text: str) -> str:
        parts = _PROGRAM.split(text)
        return "".join(
            part if at % 2 else _LINK.sub(lambda match: self.link(name, *match.groups("")), part)
            for at, part in enumerate(parts)
        )

    def link(self, name: str, mark: str, words: str, target: str, anchor: str) -> str:
        path = (ROOT / name).parent.joinpath(target).resolve()
        inside = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            return words
        if inside not in self.pages:
            is_page = path.suffix == ".md"
            self.pages[inside] = _ORPHAN + path.read_text("utf-8") if is_page else ""
            self.left.append(inside)
        if inside == HOME:
            return f"[{words}](/index.md{anchor})"
        if mark or path.suffix == ".md":
            return f"{mark}[{words}]({target}{anchor})"
        return f"{{download}}`{words.replace('`', '')} <{target}>`"


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m docs.website.check FOLDER`: what is wrong with the links of a site, a line each; status 1 if anything is.

Laws:

* A link to a page of the site leads to a file that is there, and its anchor to an element of it.
* Nothing is loaded from elsewhere: scripts, styles, images and fonts are the site's own files, so that it opens
  without a network. Links that a reader may follow are none of that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_LOADING: Final = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
_IN_STYLES: Final = re.compile(r"(?:url\(|@import\s+(?:url\()?)['\"]?((?:https?:)?//[^'\")\s;]+)")


def find_problems(folder: Path) -> list[str]:
    """Return what breaks the laws, each as a line that begins with the file."""
    folder = folder.resolve()  # as the targets of links are
    pages = {path: _Page(path) for path in sorted(folder.rglob("*.html"))}
    found = [f"{folder}: there is no page"] if not pages else []
    for path, page in pages.items():
        name = path.relative_to(folder)
        found += [f"{name}: loads {address}" for address in page.loaded if urlsplit(address).netloc]
        found += [f"{name}: {link} leads nowhere" for link in page.links if not _leads(path, link, pages)]
    for path in sorted(folder.rglob("*.css")):
        found += [f"{path.relative_to(folder)}: loads {each}" for each in _IN_STYLES.findall(path.read_text("utf-8"))]
    return found


def main() -> int:
    problems = find_problems(Path(sys.argv[1]))
    print(*problems, sep="\n", end="\n" * bool(problems))
    return bool(problems)


def _leads(page: Path, link: str, pages: dict[Path, _Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return parts.scheme in ("http", "https", "mailto", "data")
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target not in pages:
        return target.is_file() and not parts.fragment
    return not parts.fragment or unquote(parts.fragment) in pages[target].anchors


class _Page(HTMLParser):
    """The links and anchors of a page.

    :ivar links: addresses that it names, as they stand there
    :ivar loaded: those that the browser loads with it
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += self._take(tag, dict(attrs))

    def _take(self, tag: str, given: dict[str, str | None]) -> Iterator[str]:
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        if tag == "a" and (address := given.get("href")):
            yield address
        if (key := _LOADING.get(tag)) and (address := given.get(key)):
            self.loaded.append(address)
            yield address


if __name__ == "__main__":
    raise SystemExit(main())

"""The HTML report as tests read it: its elements, and the data of its scripts."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from kcoord_wire.forensics.model import GroupHistory, Loss
from kcoord_wire.report import write_html


class Outline(HTMLParser):
    """The elements of a page, with the text of scripts and styles.

    :ivar elements: tag and attributes, in order
    :ivar parts: each text with the index of the element it follows the start of, in order
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.parts: list[tuple[int, str]] = []
        self.inside = -1
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = len(self.elements)
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.inside = -1

    def handle_data(self, data: str) -> None:
        self.texts[self.inside] = self.texts.get(self.inside, "") + data
        self.parts.append((self.inside, data))

    def words(self) -> list[str]:
        """The texts that stand in the page without scripts, in order."""
        hidden = {at for at, (tag, _) in enumerate(self.elements) if tag in ("script", "style")}
        found = (re.sub("[ \n]+", " ", text).strip(" ") for at, text in self.parts if at not in hidden)
        return [text for text in found if text]

    def first(self, name: str) -> str:
        """The text of the element with an id, up to the next element."""
        return next(self.texts.get(at, "") for at, (_, found) in enumerate(self.elements) if found.get("id") == name)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, self.texts.get(at, "")) for at, (name, attributes) in enumerate(self.elements) if name == tag
        ]


def page(tmp_path: Path, histories: list[GroupHistory], lost: list[Loss] | None = None, **words: str) -> str:
    """The HTML of a report."""
    path = tmp_path / "report.html"
    write_html(histories, lost or [], path, **words)
    return path.read_text("utf-8")


def data_of(text: str) -> dict[str, Any]:
    """The JSON that the scripts of a page read."""
    [data] = [body for attributes, body in Outline(text).all("script") if attributes.get("id") == "data"]
    result: dict[str, Any] = json.loads(data)
    return result

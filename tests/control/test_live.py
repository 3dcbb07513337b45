"""The live page as text: complete, without other sources, and what its policy allows. tests/interop has the browser."""

from __future__ import annotations

import base64
import hashlib
import re

from kcoord_wire.control.server import live_page, live_policy


def test_the_policy_allows_what_is_in_the_page_alone() -> None:
    page, policy = live_page().decode(), live_policy()
    for tag in ("style", "script"):
        [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_page_names_no_other_site() -> None:
    page = live_page().decode()
    assert set(re.findall(r"https?://[\w.]+", page)) <= {"http://www.w3.org"}, "a namespace of SVG"
    assert "innerHTML" not in page
    assert "{{" not in page.replace("${{", "")

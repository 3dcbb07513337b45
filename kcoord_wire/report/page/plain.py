"""The parts of the page that need no script: the table of all groups, what could not be read, and, for readers without
scripts, each group in sentences and tables.

Laws:

* It is made from the data that the scripts read, so that both say the same. Every text is escaped; a pair of backticks
  in a sentence sets code.
* Times are UTC. In the table of all groups each has its rebalances on one scale of time, so that groups compare.
* No attribute of style: the page's policy forbids them. Colours are attributes of SVG.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Final

from kcoord_wire.protocol.wording import counted
from kcoord_wire.report.formatting import ago, duration, utc
from kcoord_wire.report.page.keys import FindingKeys, GroupKeys, PageKeys, RebalanceKeys

_SIGNS: Final = {"critical": "▲", "warning": "◆", "info": "●"}
_WIDTH: Final = 1000  # units of a scale of time
_NARROWEST: Final = 4


def overview(page: PageKeys) -> str:
    """Return the table of all groups; empty where there is one at most."""
    groups = page["groups"]
    if len(groups) < 2:
        return ""
    first = min(group["first"] for group in groups)
    last = max(group["first"] + group["span"] for group in groups)
    total = sum(group["total"] for group in groups)
    rows = [
        [
            escape(group["id"]),
            f"{escape(group['period'])}{_scale(page, group, first, last)}",
            f"{_badge(group['severity'])} {_worded(group['headline'])}",
            f"{group['total']:,}",
            _cause(page, group["causes"][0][0], f" ({group['causes'][0][1]:,})") if group["causes"] else "",
            duration(group["rebalancing"]),
            "not known" if group["paused"] is None else duration(group["paused"]),
        ]
        for group in groups
    ]
    span = f"{_utc(first)} to {_utc(last)}"
    heads = ("Group", "When", "What matters most", ">Rebalances", "Most frequent cause", ">In rebalances", ">Paused")
    caption = f"{counted(len(groups), 'group')}, worst first; {counted(total, 'rebalance')} in total. The bars: {span}"
    table = _table("all-table", caption, heads, rows, numbered=True)
    return (
        '<section id="all" aria-labelledby="all-title"><h2 id="all-title">All groups</h2>'
        f'<div class="scroll some" tabindex="0" role="region" aria-labelledby="all-title">{table}</div></section>'
    )


def losses(page: PageKeys) -> str:
    """Return the section of what could not be read."""
    lost = page["lost"]
    if not lost["places"]:
        text, table = "Everything was read.", ""
    else:
        text = f"{counted(lost['count'], 'piece')} at {counted(lost['places'], 'place')}, "
        text += f"{counted(lost['bytes'], 'byte')}."
        if lost["places"] > len(page["losses"]):
            text += f" The first {len(page['losses']):,} places:"
        rows = [
            [
                escape(loss["source"]),
                f"{loss['at']:,}",
                escape(loss["what"]),
                f"{loss['count']:,}",
                f"{loss['bytes']:,}",
            ]
            for loss in page["losses"]
        ]
        table = _table("losses", "Where, and why", ("Source", ">At", "What", ">Times", ">Bytes"), rows)
        table = f'<div class="scroll" tabindex="0" role="region" aria-labelledby="losses-title">{table}</div>'
    return (
        '<section aria-labelledby="losses-title"><h2 id="losses-title">What could not be read</h2>'
        f'<p id="lost">{escape(text)}</p>{table}</section>'
    )


def plain(page: PageKeys) -> str:
    """Return every group in sentences and tables."""
    if not page["groups"]:
        return "<p>No consumer group was found.</p>"
    cut = f"<p>{escape(' '.join(page['cut']))}</p>" if page["cut"] else ""
    return cut + "".join(_group(page, group) for group in page["groups"])


def _group(page: PageKeys, group: GroupKeys) -> str:
    wrong = [finding for finding in group["findings"] if finding["severity"] != "info"]
    others = [finding for finding in group["findings"] if finding["severity"] == "info"]
    parts = [
        f"<h2>{escape(group['id'])} {_badge(group['severity'])}</h2>",
        f'<p class="lead">{_worded(group["headline"])}</p>',
        f"<p>{_worded(group['sentence'])}</p>",
        f"<p>{escape(group['behind'])}</p>" if group["behind"] else "",
        f'<p class="quiet">{escape(group["period"])} · {escape(group["origin"])}</p>',
        _findings("What is wrong", wrong, group),
        _findings("What was found besides" if wrong else "What was found", others, group),
        _causes(page, group),
        _clients(group),
        _rebalances(page, group),
        _members(group),
        _sentences("What this source does not show", group["blind"]),
        _sentences("What this page leaves out", group["cut"]),
    ]
    return f"<section>{''.join(parts)}</section>"


def _findings(title: str, findings: Sequence[FindingKeys], group: GroupKeys) -> str:
    items = []
    for finding in findings:
        alike = f" {_worded(finding['alike'])}" if finding["alike"] else ""
        advice = f'<p class="advice"><b>What to do:</b> {_worded(finding["advice"])}</p>' if finding["advice"] else ""
        when = f"{_when(group, finding['start'])} to {_when(group, finding['end'])}"
        numbers = ", ".join(f"#{number}" for number in finding["rebalances"])
        items.append(
            f'<li class="finding {_known(finding["severity"])}"><p>{_badge(finding["severity"])} '
            f'{_worded(finding["text"])}{alike}</p>{advice}<p class="quiet">{escape(finding["detector"])} · {when}'
            f"{f' · rebalances {numbers}' if numbers else ''}</p></li>"
        )
    return f'<h3>{title}</h3><ul class="findings">{"".join(items)}</ul>' if items else ""


def _causes(page: PageKeys, group: GroupKeys) -> str:
    rows = [
        [_cause(page, cause, ""), f"{count:,}", duration(ms), duration(paused)]
        for cause, count, ms, paused in group["causes"]
    ]
    return _table("", "Causes, most frequent first", ("Cause", ">Times", ">Total time", ">Paused"), rows)


def _clients(group: GroupKeys) -> str:
    rows = [
        [
            _person(name, host),
            f"{set_off:,}",
            f"{was_last:,}",
            duration(late) if was_last else "",
            f"{removed:,}",
        ]
        for name, host, set_off, was_last, late, removed in group["culprits"]
    ]
    heads = ("Client", ">Set off", ">Was last", ">Latest by", ">Removed")
    return _table("", "Clients that set off rebalances or joined last", heads, rows)


def _rebalances(page: PageKeys, group: GroupKeys) -> str:
    rows = [_rebalance(page, group, row) for row in group["rebalances"]]
    heads = (
        ">#", ">Start (UTC)", "Cause", "Set off by", ">Took", "Waited for", ">Moved", ">Paused", "Outcome", "Why",
    )  # fmt: skip
    return _table("", "Rebalances, in order of time", heads, rows)


def _rebalance(page: PageKeys, group: GroupKeys, row: RebalanceKeys) -> list[str]:
    sure = row.get("sure", 0.0)
    waited = _person(row.get("last", ""), row.get("lastHost", ""))
    waited = ", ".join(
        filter(None, (waited, escape(row.get("how", "")), duration(row["late"]) if "late" in row else ""))
    )
    return [
        f"{row['n']}",
        _when(group, row["start"]),
        _cause(page, row["cause"], "" if sure == 1 else f" {sure:.0%}"),
        _person(row.get("who", ""), row.get("host", "")),
        duration(row["took"]) if "took" in row else "",
        waited,
        f"{row.get('moved', 0):,}",
        duration(row["paused"]) if "paused" in row else "",
        escape(row.get("outcome", "")),
        _worded(row.get("detail", "")),
    ]


def _members(group: GroupKeys) -> str:
    rows = []
    for lane in group["lanes"]:
        _, end, why, _ = lane["lives"][-1]
        left = f"{_when(group, end)}, {escape(why)}" if why else "still there"
        about = escape(lane["about"])
        start = _when(group, lane["lives"][0][0])
        rows.append([escape(lane["label"]), escape(lane["host"]), f"{len(lane['lives']):,}", start, left, about])
    heads = ("Client", "Host", ">Member ids", ">First seen (UTC)", "Left (UTC)", "About")
    return _table("", "Members, one row per client", heads, rows)


def _sentences(title: str, sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{_worded(sentence)}</li>" for sentence in sentences)
    return f"<h3>{title}</h3><ul>{items}</ul>" if items else ""


# ---- parts


def _table(name: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numbered: bool = False) -> str:
    """Return a table; empty without rows.

    :param heads: those of figures, which are aligned to the right, begin with ``>``
    :param rows: cells as markup
    :param numbered: each row has its number as ``data-at``
    """
    if not rows:
        return ""
    kinds = [' class="figure"' if head.startswith(">") else "" for head in heads]
    top = "".join(
        f'<th scope="col"{kind}>{head.removeprefix(">")}</th>' for head, kind in zip(heads, kinds, strict=True)
    )
    lines = []
    for at, row in enumerate(rows):
        first, *rest = (f"{kind}>{cell}" for cell, kind in zip(row, kinds, strict=True))
        number = f' data-at="{at}"' if numbered else ""
        lines.append(f'<tr{number}><th scope="row"{first}</th>{"".join(f"<td{cell}</td>" for cell in rest)}</tr>')
    named = f' id="{name}"' if name else ""
    caption = f"<caption>{escape(caption)}</caption>"
    return f"<table{named}>{caption}<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _scale(page: PageKeys, group: GroupKeys, first: float, last: float) -> str:
    """Return the group on the scale of all groups: when it was seen, and its rebalances by cause."""
    unit = _WIDTH / max(last - first, 1.0)
    offset = (group["first"] - first) * unit
    bars: dict[int, tuple[int, str]] = {}  # one for each place: the longest
    for row in group["rebalances"]:
        place, width = round(offset + row["start"] * unit), round((row["end"] - row["start"]) * unit)
        bars[place] = max(bars.get(place, (0, "")), (max(width, _NARROWEST), _colour(page, row["cause"])))
    rects = "".join(
        f'<rect x="{min(place, _WIDTH - _NARROWEST)}" y="2" width="{width}" height="8" fill="{colour}"/>'
        for place, (width, colour) in sorted(bars.items())
    )
    span = max(round(group["span"] * unit), _NARROWEST)
    return (
        f'<svg class="scale" viewBox="0 0 {_WIDTH} 12" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="seen" x="{min(round(offset), _WIDTH - _NARROWEST)}" y="5" width="{span}" height="2"/>'
        f"{rects}</svg>"
    )


def _cause(page: PageKeys, cause: str, more: str) -> str:
    rect = f'<rect width="1" height="1" fill="{_colour(page, cause)}"/>'
    return f'<svg class="swatch" viewBox="0 0 1 1" aria-hidden="true">{rect}</svg>{escape(cause + more)}'


def _colour(page: PageKeys, cause: str) -> str:
    return page["causes"][cause]["colour"] if cause in page["causes"] else page["other"]


def _badge(severity: str) -> str:
    text = "nothing found" if severity == "quiet" else escape(severity)
    return f'<span class="badge {_known(severity)}">{_SIGNS.get(severity, "○")} {text}</span>'


def _known(severity: str) -> str:
    return severity if severity in _SIGNS else ""


def _person(name: str, host: str) -> str:
    return escape(f"{name} ({host})" if name and host else name)


def _worded(text: str) -> str:
    """Return a sentence as markup."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _when(group: GroupKeys, ms: float) -> str:
    """Return a moment of a group: the time of day, the date where that is another, and how long after the first."""
    text = _utc(group["first"] + ms)
    day = "" if text[:10] == group["period"][:10] else f"{text[:10]} "
    return escape(f"{day}{text[11:].removesuffix(' UTC')} ({ago(round(ms * 1e6), 0)})")


def _utc(ms: float) -> str:
    return utc(round(ms * 1e6), digits=3)

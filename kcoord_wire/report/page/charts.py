"""The five charts of a group, as Vega-Lite: rebalances by cause, members, lag, paused partitions, commits.

Laws:

* A chart contains no data: the page sets its rows, its time span (`t0` to `t1`) and its width, so that the five move
  together and one set of charts serves all groups.
* Their plots are exactly above each other: the space beside a plot is set by the page, not measured.
* Colours of text, grid and background come from the style sheet, so that a change of theme redraws nothing.
"""

from __future__ import annotations

from typing import Any, Final

from kcoord_wire.extras import require

BAR: Final = "#2f6aa8"  # with white numbers on it
PAUSED: Final = "#d55e00"
LAG: Final = "#8a5fa8"
COMMITTED: Final = "#2f8f5b"
FAILED: Final = "#d1495b"
MEMBER: Final = "#7d8590"
DEAD: Final = "#d1495b"
FONT: Final = (
    "system-ui, Segoe UI, Roboto, Helvetica Neue, Arial, DejaVu Sans, sans-serif"  # the same as in the style sheet
)
CLOCK: Final = (
    "utcFormat(datum.value, {year: '%Y', quarter: '%b %Y', month: '%b %Y', week: '%d %b', date: '%d %b', "
    "hours: '%H:%M', minutes: '%H:%M', seconds: '%H:%M:%S', milliseconds: '%H:%M:%S.%L'})"
)
CROSS: Final = "M-1,-1L1,1M1,-1L-1,1"


def chart_specs() -> dict[str, dict[str, Any]]:
    """The Vega-Lite specification of every chart, by the id of its element in the page.

    :raises MissingLibraryError: altair is not installed
    """
    made = {
        "causes": _chart(_causes(), rows=True),
        "lanes": _chart(_lanes(), rows=True),
        "lag": _chart(_curve(LAG)),
        "pauses": _chart(_curve(PAUSED)),
        "commits": _chart(_commits()),
    }
    return {name: chart.to_dict() for name, chart in made.items()}


def _altair() -> Any:
    return require("altair", "analyze", "the HTML report")


def _chart(layers: list[Any], *, rows: bool = False) -> Any:
    alt = _altair()
    params = {"t0": 0, "t1": 1, "ticks": 8, "shade": 0.2} | ({"labels": [""], "side": 150} if rows else {})
    return (
        alt.layer(*layers)
        .add_params(*(alt.param(name=name, value=value) for name, value in params.items()))
        .properties(width=600, height=80, autosize=alt.AutoSizeParams(type="none"))
        .configure(font=FONT, background="transparent")
        .configure_view(stroke=None)
        .configure_axis(labelFontSize=11, domain=False)
        .configure_mark(invalid=None)
    )


# ---- charts


def _causes() -> list[Any]:
    """Rebalances, one row per cause: dark until the joins were answered, then light until the assignment was."""
    alt = _altair()
    x, y = _time("from", axis="top"), _row("top")
    whole = _mark("bands", "rect", opacity=0.55, cursor="pointer").encode(x=x, x2="to", y=y, y2="bottom:Q")
    joining = _mark("bands", "rect", cursor="pointer").encode(x=x, x2="joined:T", y=y, y2="bottom:Q")
    return [layer.encode(color=alt.Color("colour:N", scale=None), tooltip="tip:N") for layer in (whole, joining)]


def _lanes() -> list[Any]:
    """Members, one lane per client: a line while it was a member, a bar for its partitions, a mark where it left.

    A dashed box: its process was dead, and the coordinator did not know.
    """
    alt = _altair()
    x, y = _time("from", axis=None), _row("top")
    bars = _mark("bars", "rect", color=BAR, cornerRadius=1).encode(x=x, x2="to", y=y, y2="bottom:Q", tooltip="tip:N")
    texts = _mark("figures", "text", color="#ffffff", fontSize=10, baseline="middle").encode(
        x=_time("middle", axis=None), y=_row("row"), text="text:N"
    )
    lives = _mark("lives", "rule", strokeWidth=1.5, color=MEMBER).encode(x=x, x2="to", y=_row("row"), tooltip="tip:N")
    ends = _mark("ends", "point", shape=CROSS, size=45, strokeWidth=2, opacity=1).encode(
        x=_time("at", axis=None), y=_row("row"), color=alt.Color("colour:N", scale=None), tooltip="tip:N"
    )
    dead = _mark(
        "dead", "rect", fill=DEAD, fillOpacity=0.12, stroke=DEAD, strokeDash=[3, 3], strokeWidth=1.2, opacity=1
    ).encode(x=x, x2="to", y=y, y2="bottom:Q", tooltip="tip:N")
    return [_bands(None), lives, bars, texts, ends, dead]


def _curve(colour: str) -> list[Any]:
    curve = _mark("steps", "area", interpolate="step-after", color=colour, opacity=0.9)
    return [_bands(None), curve.encode(x=_time("at", axis=None), y=_amount("value"))]


def _commits() -> list[Any]:
    """Records that the commits advanced by, and marks where commits were refused."""
    x = _time("at", axis="bottom")
    curve = _mark("steps", "area", interpolate="step-after", color=COMMITTED, opacity=0.9)
    refused = _mark("refused", "point", shape=CROSS, size=45, strokeWidth=2, color=FAILED, opacity=1)
    return [
        _bands("bottom"),
        curve.encode(x=x, y=_amount("value")),
        refused.encode(x=x, y=_amount("value"), tooltip="tip:N"),
    ]


# ---- shared parts


def _mark(data: str, mark: str, **look: Any) -> Any:
    """A mark over the rows that the page sets under the name `data`; screen readers get the tables instead."""
    alt = _altair()
    return getattr(alt.Chart(alt.NamedData(name=data)), f"mark_{mark}")(clip=True, aria=False, **look)


def _bands(axis: str | None) -> Any:
    alt = _altair()
    return _mark("bands", "rect", opacity={"expr": "shade"}, cursor="pointer").encode(
        x=_time("from", axis=axis),
        x2="to",
        y=alt.value(0),
        y2=alt.value({"expr": "height"}),
        color=alt.Color("colour:N", scale=None),
        tooltip="tip:N",
    )


def _time(field: str, axis: str | None) -> Any:
    alt = _altair()
    look = alt.Axis(
        title=None,
        grid=True,
        ticks=axis is not None,
        labels=axis is not None,
        orient=axis or "bottom",
        labelExpr=CLOCK,
        tickCount={"expr": "ticks"},
        labelOverlap="greedy",
        labelSeparation=10,
        labelFlush=True,
    )
    scale = alt.Scale(type="utc", domainRaw={"expr": "[t0, t1]"}, nice=False)
    return alt.X(f"{field}:T", scale=scale, axis=look)


def _row(field: str) -> Any:
    """Rows counted from the top; the page sets their names as the signal `labels`."""
    alt = _altair()
    axis = alt.Axis(
        title=None,
        grid=False,
        ticks=False,
        values={"expr": "sequence(0.5, length(labels))"},
        labelExpr="labels[floor(datum.value)]",
        labelLimit={"expr": "side - 12"},
        labelPadding=6,
        labelOverlap=False,
    )
    scale = alt.Scale(domain=[0, {"expr": "length(labels)"}], reverse=True, nice=False, zero=False)
    return alt.Y(f"{field}:Q", scale=scale, axis=axis)


def _amount(field: str) -> Any:
    alt = _altair()
    axis = alt.Axis(title=None, tickCount=3, tickMinStep=1, format=",.0f", labelPadding=6, ticks=False)
    return alt.Y(f"{field}:Q", scale=alt.Scale(zero=True, nice=True), axis=axis, stack=None)

"""What the scores say, as text: the agreement, the confusion matrix, the worst scenarios, one scenario in full."""

from __future__ import annotations

from collections.abc import Mapping

from kcoord_wire.forensics.model import Cause, Rebalance
from kcoord_wire.simulation.clock import EPOCH_MS
from tests.support.readme_part import README, fill_readme
from tests.truth.labels import RULES, Label
from tests.truth.pipeline import Origin, Outcome
from tests.truth.records import CANNOT_TELL, CLASSES
from tests.truth.scorer import Score, Verdict

__all__ = ["markdown", "matrix", "readme", "side_by_side", "write_readme"]


def matrix(score: Score, classes: Mapping[Cause, Cause] | None = None) -> list[str]:
    """The confusion matrix as a markdown table: what was down, what was inferred across.

    :param classes: causes that count as one, as of `CLASSES`
    """
    order = [cause.name for cause in Cause]
    rows = [name for name in (*order, "invented") if any(truth == name for truth, _ in score.matrix)]
    columns = [name for name in (*order, "missed") if any(guess == name for _, guess in score.matrix)]
    short = {name: _short(name) for name in columns}
    lines = [
        "| it was \\ it is called | " + " | ".join(short.values()) + " | right |",
        "|---|" + "--:|" * (len(columns) + 1),
    ]
    for row in rows:
        counts = [score.matrix[row, column] for column in columns]
        cells = [
            f"**{count}**" if column == row else str(count or "") for column, count in zip(columns, counts, strict=True)
        ]
        right = sum(
            count for column, count in zip(columns, counts, strict=True) if _is_same(row, column, classes or {})
        )
        share = "" if row == "invented" else f"{right / sum(counts):.1%}"
        lines.append(f"| {_title(row)} | " + " | ".join(cells) + f" | {share} |")
    return lines


def _is_same(truth: str, guess: str, classes: Mapping[Cause, Cause]) -> bool:
    if truth == guess or truth not in Cause.__members__ or guess not in Cause.__members__:
        return truth == guess
    return classes.get(Cause[truth], Cause[truth]) is classes.get(Cause[guess], Cause[guess])


def _title(name: str) -> str:
    return Cause[name].value if name in Cause.__members__ else f"*{name}*"


def _short(name: str) -> str:
    return name.lower().replace("_", " ")


def markdown(score: Score, origin: Origin, hidden: int = 0) -> str:
    """All of it."""
    lines = [
        _sentence(score, origin, hidden),
        "",
        *matrix(score, CLASSES if origin == "log" else None),
        "",
        "| of those matched | right | of | |",
        "|---|--:|--:|--:|",
    ]
    for name, (right, of) in score.checks.items():
        if of:
            lines.append(f"| {name} | {right} | {of} | {right / of:.1%} |")
    if origin == "log":
        lines += ["", "What records cannot tell:", "", *(f"* {text}" for text in CANNOT_TELL)]
    if worst := score.worst():
        lines += ["", "Scenarios with wrong causes:", ""]
        lines += [f"* {name}: {count}" for name, count in worst[:25]]
    return "\n".join(lines)


def _sentence(score: Score, origin: Origin, hidden: int) -> str:
    source = "frames on the wire" if origin == "wire" else "records of the log"
    text = (
        f"{score.scenarios} scenarios, {score.true} rebalances, from {source} alone: {score.agreement:.2%} of the "
        f"causes are right, {score.without_new_members:.2%} of those other than new members; {score.missed} missed, "
        f"{score.invented} invented."
    )
    if origin == "log":
        text += (
            f" Causes that leave the same records count as one; {score.untold} more left records that tell no cause."
        )
    trace = "frame behind them" if origin == "wire" else "record at all"
    return text if not hidden else f"{text} {hidden} have left no {trace}."


def readme(wire: Score, unseen: int, log: Score, unrecorded: int) -> str:
    """What stands between the marks of the README."""
    return "\n".join(
        [
            _sentence(wire, "wire", unseen),
            "",
            *matrix(wire),
            "",
            _sentence(log, "log", unrecorded),
            "",
            "Records cannot tell:",
            "",
            *(f"* {text}" for text in CANNOT_TELL),
        ]
    )


def write_readme(text: str) -> None:
    """Put it there. ValueError where the README has no marks for it."""
    fill_readme("causes", text, README)


# ---- one scenario


def side_by_side(outcome: Outcome) -> str:
    """What was and what was inferred, rebalance by rebalance."""
    lines = [str(outcome.scenario), f"{outcome.rows} rows", ""]
    for verdict in outcome.verdicts:
        mark = "ok  " if verdict.is_right else "WRONG"
        wrong = [name for name, is_right in verdict.checks.items() if is_right is False]
        lines.append(f"{mark} {verdict.group_id}" + (f"   wrong: {', '.join(wrong)}" if wrong else ""))
        lines += [f"    was      {line}" for line in _truth(verdict.truth)]
        lines += [f"    inferred {line}" for line in _guess(verdict)]
    return "\n".join(lines)


def _truth(label: Label | None) -> list[str]:
    if label is None:
        return ["nothing"]
    return [
        f"#{label.number} {label.cause.name} ({label.trigger}; {RULES[label.rule]})",
        f"   by {label.client_id} {label.client_host} {label.member_id} reason={label.reason!r}",
        f"   {_time(label.started_ms)} joined {_time(label.joined_ms)} ended {_time(label.ended_ms)} {label.outcome} "
        f"generation {label.generation_id} {label.assignor}{' cut off' if label.cut else ''}",
        f"   joins {[(member_id[-6:], ms) for member_id, ms in label.joins[-4:]]} "
        f"removed {[(member_id[-6:], why) for member_id, why in label.removed]}",
    ]


def _guess(verdict: Verdict) -> list[str]:
    guess: Rebalance | None = verdict.inferred
    if guess is None:
        return ["nothing"]
    ms = 1_000_000
    joined = None if guess.joined_ns is None else guess.joined_ns / ms
    ended = None if guess.ended_ns is None else guess.ended_ns / ms
    return [
        f"#{guess.number} {Cause(guess.cause).name} ({guess.confidence:.2f}; {guess.detail})",
        f"   by {guess.client_id} {guess.client_host} {guess.member_id} reason={guess.reason!r}",
        f"   {_time(guess.started_ns / ms)} joined {_time(joined)} ended {_time(ended)} {guess.outcome} "
        f"generation {guess.generation_id} {guess.assignor}",
        f"   last {(guess.last_member_id or '')[-6:]} late {guess.late_ms} removed "
        f"{[(each.member_id[-6:], each.why) for each in guess.removed]}",
        *(f"   - {_time(item.time_ns / ms)} #{item.seq} {item.text}" for item in guess.evidence),
    ]


def _time(ms: float | None) -> str:
    return "-" if ms is None else f"{(ms - EPOCH_MS) / 1_000:.3f}"

"""Scores as text: the agreement, the confusion matrices by cause and by rule, the worst scenarios, one in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Rebalance
from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from tests.truth.labels import RULES, Label
from tests.truth.pipeline import Origin, Outcome
from tests.truth.records import CANNOT_SHOW, CLASSES
from tests.truth.scorer import Comparison, Score


def matrix(score: Score, classes: Mapping[Cause, Cause] | None = None) -> list[str]:
    """The confusion matrix as a markdown table: a row for each true cause, a column for each inferred one.

    :param classes: causes that count as one, as in `CLASSES`
    """
    columns = _names((guess for _, guess in score.matrix), "missed")
    lines = [
        "| it was \\ it is called | " + " | ".join(map(_short, columns)) + " | right |",
        "|---|" + "--:|" * (len(columns) + 1),
    ]
    for row in _names((truth for truth, _ in score.matrix), "invented"):
        counts = {column: score.matrix[row, column] for column in columns}
        cells = [f"**{count}**" if column == row else str(count or "") for column, count in counts.items()]
        right = sum(count for column, count in counts.items() if _is_same(row, column, classes or {}))
        share = "" if row == "invented" else f"{right / sum(counts.values()):.1%}"
        lines.append(f"| {_title(row)} | " + " | ".join(cells) + f" | {share} |")
    return lines


def _names(used: Iterable[str], more: str) -> list[str]:
    """The causes that occur, in order, and then the cell that is not a cause."""
    found = set(used)
    return [name for name in (*Cause.__members__, more) if name in found]


def rule_matrix(score: Score) -> list[str]:
    """The confusion matrix by rule: how often the rule that applied was found, its cause, or another rule instead."""
    lines = ["| rule | rebalances | same rule | right cause | other rules |", "|---|--:|--:|--:|---|"]
    for name in RULES:
        counts = {(found, right): n for (rule, found, right), n in score.rules.items() if rule == name}
        total = sum(counts.values())
        same = sum(n for (found, _), n in counts.items() if found == name)
        right = sum(n for (_, is_right), n in counts.items() if is_right)
        others = sorted((found, n) for (found, _), n in counts.items() if found != name)
        lines.append(f"| {name} | {total} | {same} | {right} | {', '.join(f'{found} {n}' for found, n in others)} |")
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
    """The whole report."""
    lines = [
        _sentence(score, origin, hidden),
        "",
        *matrix(score, CLASSES if origin == "log" else None),
        "",
        *([*rule_matrix(score), ""] if origin == "wire" else []),
        "| of those matched | right | of | |",
        "|---|--:|--:|--:|",
    ]
    for name, (right, of) in score.checks.items():
        if of:
            lines.append(f"| {name} | {right} | {of} | {right / of:.1%} |")
    if origin == "log":
        lines += ["", "What records cannot show:", "", *(f"* {text}" for text in CANNOT_SHOW)]
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
            f" Causes that leave the same records count as one; {score.unshown} more left records that show no cause."
        )
    trace = "frame behind them" if origin == "wire" else "record at all"
    return text if not hidden else f"{text} {hidden} have left no {trace}."


def accuracy(wire: Score, unseen: int, log: Score, unrecorded: int) -> str:
    """How often the causes are right, for docs/causes.md."""
    return "\n".join(
        [
            _sentence(wire, "wire", unseen),
            "",
            *matrix(wire),
            "",
            "By rule:",
            "",
            *rule_matrix(wire),
            "",
            _sentence(log, "log", unrecorded),
        ]
    )


# ---- one scenario


def side_by_side(outcome: Outcome) -> str:
    """What happened and what was inferred, rebalance by rebalance."""
    lines = [str(outcome.scenario), f"{outcome.rows} rows", ""]
    for comparison in outcome.comparisons:
        mark = "ok  " if comparison.is_right else "WRONG"
        wrong = [name for name, is_right in comparison.checks.items() if is_right is False]
        lines.append(f"{mark} {comparison.group_id}" + (f"   wrong: {', '.join(wrong)}" if wrong else ""))
        lines += [f"    was      {line}" for line in _truth(comparison.truth)]
        lines += [f"    inferred {line}" for line in _guess(comparison)]
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


def _guess(comparison: Comparison) -> list[str]:
    guess: Rebalance | None = comparison.inferred
    if guess is None:
        return ["nothing"]
    ms = 1_000_000
    joined = None if guess.joined_ns is None else guess.joined_ns / ms
    ended = None if guess.ended_ns is None else guess.ended_ns / ms
    return [
        f"#{guess.number} {Cause(guess.cause).name} ({comparison.rule}; {guess.confidence:.2f}; {guess.detail})",
        f"   by {guess.client_id} {guess.client_host} {guess.member_id} reason={guess.reason!r}",
        f"   {_time(guess.started_ns / ms)} joined {_time(joined)} ended {_time(ended)} {guess.outcome} "
        f"generation {guess.generation_id} {guess.assignor}",
        f"   last {(guess.last_member_id or '')[-6:]} late {guess.late_ms} removed "
        f"{[(each.member_id[-6:], each.why) for each in guess.removed]}",
        *(f"   - {_time(item.time_ns / ms)} #{item.seq} {item.text}" for item in guess.evidence),
    ]


def _time(ms: float | None) -> str:
    return "-" if ms is None else f"{(ms - EPOCH_MS) / 1_000:.3f}"

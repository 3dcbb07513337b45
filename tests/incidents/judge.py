"""Judges what a report says first against what was done.

What is read first: the headline of the group, its findings with their advice (of at least a warning, where something is
wrong), its outages, and the causes of the rebalances in the time of the incident. The rule of a kind says what an
operator must learn from these, whom nobody may blame, and which advice would harm. The rules come from what was done
and from the protocol; they name no detector, since what counts is what is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcoord_wire.forensics.analysis import Analysis
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory, Rebalance
from kcoord_wire.report.digest import digest_of, digests
from kcoord_wire.report.json_form import to_json
from tests.incidents.labels import LOG, Run

_SECOND: Final = 1_000_000_000
_BEFORE_NS: Final = 1 * _SECOND
_AFTER_NS: Final = 15 * _SECOND
"""What follows from an act shows within the session timeout and so much more."""

SILENCES: Final = frozenset({Cause.SESSION_EXPIRED, Cause.POLL_TIMEOUT, Cause.REBALANCE_TIMEOUT, Cause.SYNC_EXPIRED})
"""Causes that blame a client."""


@dataclass(frozen=True)
class Statement:
    """One sentence of the report. `place` is ``headline``, ``finding``, ``outage``, ``cause`` or ``loss``.

    :ivar is_open: whether it is said to last to the end of the source
    """

    place: str
    kind: str
    severity: str
    text: str
    advice: str
    from_ns: int
    is_open: bool = False

    def __str__(self) -> str:
        return f"{self.place} {self.severity} {self.kind}: {self.text}" + (f" [{self.advice}]" if self.advice else "")


@dataclass(frozen=True)
class Says:
    """A statement that names the essential.

    :ivar words: a regular expression that its kind and text contain, in any case
    :ivar names: whether it has to name a victim
    :ivar even_info: whether a finding that needs no action will do: nothing is wrong
    """

    words: str
    names: bool = True
    even_info: bool = False
    places: Sequence[str] = ("finding", "outage", "cause", "loss")

    def fits(self, statement: Statement, victims: Sequence[str]) -> bool:
        said = f"{statement.kind}: {statement.text}"
        known = not self.names or any(victim in said for victim in victims)
        loud = self.even_info or statement.place != "finding" or statement.severity != "info"
        return statement.place in self.places and known and loud and re.search(self.words, said, re.I) is not None


@dataclass(frozen=True)
class Rule:
    """What an operator must learn.

    :ivar learns: in words
    :ivar essential: all of these are said; none for an incident in which nothing may be found
    :ivar causes: of rebalances in the time of the incident that are right; None where any may be
    :ivar blames_broker: it was a broker's fault: no client may be blamed
    :ivar warns: whether findings of at least a warning may be there
    :ivar wrongly: a regular expression of what is wrong to say of a victim
    :ivar harmful: a regular expression of advice that would harm
    :ivar anywhere: the group has no history of its own: all that the report says counts
    :ivar first: a regular expression of what the first sentence has to say; if left out, the last of `essential`, or
        that nothing is wrong
    :ivar leads: whether the first sentence has to say it, or the run is not right
    :ivar never: a regular expression of what no sentence and no advice may say
    :ivar logged: what is essential where only the brokers' logs are there; None for the same
    :ivar outages: whether a broker was out of reach of somebody
    """

    learns: str
    essential: Sequence[Says] = ()
    first: str | None = None
    leads: bool = False
    never: str | None = None
    logged: Sequence[Says] | None = None
    outages: bool = False
    causes: frozenset[Cause] | None = None
    blames_broker: bool = False
    warns: bool = True
    wrongly: str | None = None
    harmful: str | None = None
    anywhere: bool = False

    def needs(self, run: Run) -> Sequence[Says]:
        """What is essential of what a run's report is made of."""
        return self.logged if self.logged is not None and run.reads == [LOG] else self.essential

    def opens(self, run: Run) -> Says | None:
        """What the first sentence has to say; None: that nothing is wrong."""
        needs = self.needs(run)
        if self.first is not None and needs is self.essential:
            return Says(self.first, names=bool(needs) and needs[-1].names)
        return needs[-1] if needs else None


ORDERLY: Final = frozenset(
    {
        *(Cause.NEW_MEMBER, Cause.MEMBER_LEFT, Cause.LEADER_REJOINED, Cause.COOPERATIVE_FOLLOW_UP),
        *(Cause.STATIC_REPLACED, Cause.TOPICS_CHANGED),
    }
)
"""Of topics: they are created just before the group, and Kafka 4.1 may know of them after its first epoch ("metadata
hash 0" in its log)."""
_RAISES_SESSION: Final = r"(raise|increase|lengthen) session\.timeout"
_TOUCHES_POLL: Final = r"(raise|increase|shorten|lower|reduce) max\.poll"
_BROKER_RULE: Final = {
    "blames_broker": True,
    "harmful": rf"{_RAISES_SESSION}|{_TOUCHES_POLL}|restart (the|that|this) (member|process|client)",
}

_DEAD: Final = r"\b(died|dead|killed|crashed|ended|closed|gone)\b"
_DIED: Final = r"\b(died|dead|killed|crashed)\b|(process|connection)\b.*\b(ended|closed|gone)\b"
_STILL: Final = r"silen|frozen|froze|stood still|network|not heard|paused|suspended"
_EXPIRED: Final = (Says(r"session timeout|heartbeat|session .*(ended|expired)"),)
_RESTARTED: Final = (
    Says(r"restart|started again|shut ?down|stopped|did not serve|loaded|moved|outage|not heard", names=False),
)
_NOT_DEAD: Final = r"\b(died|crashed|was killed)\b"
_NETWORK: Final = (
    r"network|cut off|unreachable|does not reach|firewall|\bNAT\b|unanswered|retransmi|sent again|packets? .*lost"
)
_SLOW_LEADER: Final = r"assign\w* .*(slow|took|takes)|the leader .* took|slow leader"
_PROTOCOL: Final = r"\b(consumer|classic|KIP-848)\b.*protocol|protocol.*\b(consumer|classic|KIP-848)\b"
_NOT_SILENT: Final = rf"^(?!.*{_DEAD}).*(frozen|fell silent|stood still)"
"""Of a process that was killed: unless it is said to be one of several that are possible."""

RULES: Final[dict[str, Rule]] = {
    "healthy": Rule("nothing is wrong", causes=ORDERLY, warns=False),
    "frozen shortly": Rule(
        "nothing happened: the session outlived the pause",
        causes=ORDERLY,
        first=r"nothing unusual|was silent for|frozen|stood still",
    ),
    "killed": Rule(
        "which process died, and that its partitions waited for its session",
        [Says(r"session timeout"), Says(_DEAD)],
        first=_DIED,
        logged=_EXPIRED,
        wrongly=_NOT_SILENT,
        harmful=_TOUCHES_POLL,
    ),
    "frozen": Rule(
        "which process was silent, with its connection open",
        [Says(r"session timeout"), Says(_STILL)],
        logged=_EXPIRED,
        wrongly=_NOT_DEAD,
        harmful=_TOUCHES_POLL,
    ),
    "cut off": Rule(
        "which client was cut off",
        [Says(r"session timeout"), Says(r"silen|frozen|froze|network|not heard|cut off|unreachable")],
        logged=_EXPIRED,
        outages=True,
        wrongly=_NOT_DEAD,
        harmful=_TOUCHES_POLL,
    ),
    "cut from the coordinator": Rule(
        "which client does not reach the coordinator",
        [Says(r"session timeout"), Says(r"network|cut off|unreachable|reach|firewall|unanswered|SYN")],
        first=r"network|unreachable|reach|firewall|unanswered|SYN",
        outages=True,
        wrongly=_NOT_DEAD,
        harmful=_TOUCHES_POLL,
    ),
    "cut from a leader": Rule(
        "which client does not reach which broker",
        [Says(r"network|cut off|unreachable|reach|firewall|unanswered|not answered|SYN|does not read|no fetch")],
        causes=ORDERLY,
        outages=True,
        harmful=_TOUCHES_POLL,
    ),
    "crash loop": Rule(
        "which process starts and dies again and again",
        [Says(r"\d+ (times|starts|incarnations|lives)|crash|restarted", places=("finding",))],
        harmful=rf"{_RAISES_SESSION}|(shorten|lower|reduce) max\.poll|evenly|uneven",
    ),
    "max poll": Rule(
        "whose application did not poll in time",
        [Says(r"max\.poll\.interval\.ms( of .*)? (was )?exceeded|did not poll|not poll(ed)? (in|for)")],
        logged=[Says(r"max\.poll|poll|left|leave")],
        harmful=_RAISES_SESSION,
    ),
    "fenced": Rule(
        "that two processes use one group.instance.id, and which one",
        [Says(r"fenced|two processes|same group\.instance\.id|one group\.instance\.id", places=("finding",))],
    ),
    "subscription": Rule("who subscribes to other topics now", [Says("subscription changed")]),
    "assignors": Rule(
        "who cannot join for want of a common assignor",
        [Says(r"INCONSISTENT_GROUP_PROTOCOL|no assignor", places=("finding",))],
    ),
    "too many": Rule(
        "who cannot join because the group is full",
        [Says(r"GROUP_MAX_SIZE_REACHED|group\.max\.size", places=("finding",))],
    ),
    "deploy": Rule(
        "that it was a deploy, and what it cost",
        [Says(r"deploy|rolling|restarted one after|bounce", False, True, ("finding", "headline"))],
        causes=ORDERLY,
        harmful=rf"{_TOUCHES_POLL}|{_RAISES_SESSION} where",
    ),
    "static deploy": Rule("nothing is wrong: static members kept their places", causes=ORDERLY),
    "slow leader": Rule(
        "that the leader's assignor is slow, and who leads",
        [Says(r"assign\w* .*(slow|took|takes|needed|waited|for \d|after \d)|slow", places=("finding",))],
    ),
    "offset reset": Rule(
        "that the offsets were set back, and of what",
        [Says(r"set the committed offset|offsets? .*(reset|back|set|moved|jump|lower|earlier|rewound)|reset")],
    ),
    "retention": Rule(
        "that records were gone before they were read, and of what",
        [Says(r"out.of.range|retention|deleted|reset|skipped|jump|gone|lost", places=("finding",))],
    ),
    "two applications": Rule(
        "that two applications share the group's name",
        [Says(r"two app|different topics|applications|no topic in common|other topics", False, False, ("finding",))],
    ),
    "deleted": Rule(
        "that the group was deleted and formed again",
        [Says(r"deleted|formed again|formed anew|begins again|follows generation", False, True, ("finding", "cause"))],
    ),
    "stopped reading": Rule(
        "which partitions are not read although their owner is there",
        [Says(r"not (read|fetch)|neither|stuck|no (longer )?(read|fetch)|stalled|stopped", places=("finding",))],
    ),
    "lag": Rule(
        "which partitions are not committed while their end moves",
        [Says(r"\blag\b|stall|behind|not commit|no commit", places=("finding", "headline"))],
    ),
    "tls": Rule("that a client speaks TLS to a plain port", [Says(r"TLS|SSL", names=False)], anywhere=True),
    "versions": Rule(
        "that a client's ApiVersions is refused", [Says(r"UNSUPPORTED_VERSION|ApiVersions", names=False)], anywhere=True
    ),
    "broker outage": Rule(
        "which broker was away, from when until when",
        [Says(r"not be reached|was answered|did not serve|moved|broker down", places=("outage",))],
        logged=_RESTARTED,
        **_BROKER_RULE,
    ),
    "coordinator moved": Rule(
        "that the coordinator moved away from a broker",
        [Says(r"moved|coordinator|broker down", places=("outage", "cause", "finding"))],
        logged=_RESTARTED,
        **_BROKER_RULE,
    ),
    "group refused": Rule(
        "that the group's ACL refuses them",
        [Says(r"GROUP_AUTHORIZATION_FAILED|authori[sz]|ACL", names=False, places=("finding",))],
        causes=ORDERLY | {Cause.UNKNOWN, Cause.REFUSED},
        harmful=_RAISES_SESSION,
    ),
    "topic refused": Rule(
        "that the topic's ACL refuses them",
        [Says(r"TOPIC_AUTHORIZATION_FAILED|authori[sz]|ACL", names=False, places=("finding",))],
        harmful=_RAISES_SESSION,
    ),
    "instance in use": Rule(
        "that a second process is refused because its group.instance.id is in use, and which",
        [Says(r"UNRELEASED_INSTANCE_ID|in use|two processes|second process|(same|one) group\.instance\.id")],
        causes=ORDERLY | {Cause.UNKNOWN},
    ),
    "slow revocation": Rule(
        "whom the group waited for to give partitions up, and how long",
        [Says(r"revok|revoc|give.* up|gave.* up|reconcil|hand.*over")],
        causes=ORDERLY | {Cause.UNKNOWN},
        leads=True,
        never=r"nothing unusual|frozen|fell silent|\brestart",
    ),
    "fenced epoch": Rule(
        "who was removed because it did not give partitions up within its rebalance timeout",
        [Says(r"revok|revoc|give.* up|gave.* up|rebalance timeout|reconcil")],
        leads=True,
        never=rf"{_NOT_DEAD}|session timeout \(|frozen|fell silent|silent since|sent nothing",
        harmful=_RAISES_SESSION,
    ),
    "autoscaler": Rule(
        "that the size of the group swings, how often",
        [Says(r"swing|autoscal|scal(e|ed|es|ing)|grows and shrinks|up and down", False, True, ("finding", "headline"))],
        causes=ORDERLY,
        leads=True,
        never=r"a deploy|nothing is wrong",
        harmful=r"group\.instance\.id",
    ),
    "tight heartbeats": Rule(
        "that the heartbeat interval is hardly shorter than the session timeout, of whom",
        [Says(r"heartbeat.*(interval|apart|every|sends)", places=("finding", "headline"))],
        logged=_EXPIRED,
        wrongly=_NOT_DEAD,
        leads=True,
        never=r"garbage|supervisor|OOM|start again and again",
        harmful=_TOUCHES_POLL,
    ),
    "poison record": Rule(
        "which record is fetched again and again",
        [Says(r"again and again|same offset|cannot be processed|\d+ times|repeated", places=("finding", "headline"))],
        causes=ORDERLY,
        leads=True,
        never=r"does not read|no fetch|update .*client|restart this",
    ),
    "response too large": Rule(
        "that answers are larger than a member takes, and of which partition",
        [Says(r"larg|too big|bytes|ends? after|closes? .*after|never gets on", places=("finding", "headline"))],
        causes=ORDERLY,
        leads=True,
        never=r"does not read|no fetch|update .*client|restart this",
    ),
    "hot partition": Rule(
        "which partition gets more than its owner processes",
        [Says(r"lag .*(grow|grew|rose|rises)|(grow|grew|rose|rises).*lag|falls? behind|faster than")],
        causes=ORDERLY,
        leads=True,
        never=r"nothing unusual|does not read|no fetch",
        harmful=r"restart|add members",
    ),
    "quota": Rule(
        "that the broker throttles a client, and which",
        [Says(r"throttl|quota")],
        causes=ORDERLY,
        leads=True,
        never=r"nothing unusual|does not read|no fetch",
        harmful=_RAISES_SESSION,
    ),
    "unwritten log": Rule(
        "that the coordinator cannot write its log: a replica of __consumer_offsets does not follow",
        [Says(r"__consumer_offsets|replica|cannot be written|COORDINATOR_NOT_AVAILABLE")],
        blames_broker=True,
        first=r"replica|cannot (be )?writ|could not (be )?writ|refus\w+ .*COORDINATOR_NOT_AVAILABLE",
        leads=True,
        never=r"had to read the group|why it was restarted|became the coordinator",
        harmful=rf"{_RAISES_SESSION}|{_TOUCHES_POLL}",
    ),
    "crash loop in a log": Rule(
        "which process starts and dies again and again",
        [Says(r"crash loop", places=("finding",))],
        first=r"came back \d+ times .*crash loop",
        leads=True,
        never=r"garbage|CPU limit",
        harmful=rf"{_RAISES_SESSION}|{_TOUCHES_POLL}",
    ),
    "blocked event loop": Rule(
        "that the coordinator had removed the client, and what blocks its heartbeats",
        [Says(r"UNKNOWN_MEMBER_ID", places=("finding",))],
        first=r"not known to the coordinator any more",
        leads=True,
        never=r"nothing unusual",
    ),
    "fenced in turns": Rule(
        "that two processes use one group.instance.id, and take it from each other",
        [Says(r"one group\.instance\.id", places=("finding",))],
        first=r"dup-a .*dup-b .*one group\.instance\.id \(orders-0\) and fence each other",
        leads=True,
        never=r"too slow|do not come back|stops for good|came back \d+ times|commits? of",
    ),
    "streams killed": Rule(
        "which instance of Streams died, and that its tasks waited for its session",
        [Says(r"session timeout"), Says(_DEAD)],
        first=_DIED,
        logged=_EXPIRED,
        wrongly=_NOT_SILENT,
        never=_SLOW_LEADER,
        harmful=_TOUCHES_POLL,
    ),
    "streams frozen": Rule(
        "which instance of Streams was silent, with its connection open",
        [Says(r"session timeout"), Says(_STILL)],
        logged=_EXPIRED,
        wrongly=_NOT_DEAD,
        never=_SLOW_LEADER,
        harmful=_TOUCHES_POLL,
    ),
    "streams restarted": Rule(
        "which instance of Streams was restarted, and that its old member stayed until its session was over",
        [
            Says(r"session timeout|old member|without leav|did not leave"),
            Says(r"restart|started again|came back|closed"),
        ],
        logged=_EXPIRED,
        wrongly=_NOT_SILENT,
        never=_SLOW_LEADER,
        harmful=_TOUCHES_POLL,
    ),
    "protocol changed": Rule(
        "that the members go over to the other protocol of groups, to which, and how many of them have",
        [
            Says(r"\b\d+ of (the |its )?\d+|\ball\b|\bboth\b", False, True, ("finding", "headline")),
            Says(_PROTOCOL, False, True, ("finding", "headline", "cause")),
        ],
        logged=[Says(rf"{_PROTOCOL}|converted to a (classic|consumer) group", False, True, ("finding", "headline"))],
        causes=ORDERLY | {Cause.UNKNOWN},
        first=_PROTOCOL,
        leads=True,
        never=r"nothing unusual|crash|frozen|fell silent|autoscal|swings|was lost|lost its log",
        harmful=rf"{_TOUCHES_POLL}|{_RAISES_SESSION}",
    ),
    "slow handler": Rule(
        "for whom the group waited, and that it was removed because it did not join in time",
        [Says(r"rebalance timeout|not (re)?join|waited for|joined .*late|handler|max\.poll")],
        logged=[Says(r"rebalance timeout|not (re)?join|waited for|joined .*late|session")],
        wrongly=rf"{_NOT_DEAD}|network",
        harmful=_RAISES_SESSION,
    ),
    "blocked loop": Rule(
        "who sent no heartbeats with its connection open, as KafkaJS does whose event loop is blocked",
        [Says(r"session timeout"), Says(rf"{_STILL}|event loop|blocked")],
        logged=_EXPIRED,
        wrongly=_NOT_DEAD,
        harmful=_TOUCHES_POLL,
    ),
    "connection dropped": Rule(
        "whose connections carried nothing any more while its process ran and could open others",
        [Says(r"session timeout"), Says(_NETWORK)],
        logged=_EXPIRED,
        outages=True,
        wrongly=_NOT_DEAD,
        harmful=_TOUCHES_POLL,
    ),
    "lossy network": Rule(
        "who lost its session because the network lost its packets, not its process",
        [Says(r"session timeout"), Says(_NETWORK)],
        logged=_EXPIRED,
        outages=True,
        wrongly=rf"{_NOT_DEAD}|forgot",
        harmful=_TOUCHES_POLL,
    ),
    "lossy shortly": Rule(
        "nothing, or that the network lost packets: the session outlived it",
        causes=ORDERLY,
        outages=True,
        first=rf"nothing unusual|{_NETWORK}",
        wrongly=rf"{_NOT_DEAD}|forgot",
        harmful=_TOUCHES_POLL,
    ),
    "poll storm": Rule(
        "whose applications did not poll in time, one after the other, and how often",
        [
            Says(r"\b\d+ (of|members|times|rebalances|x)\b|both|each of", False, False, ("finding", "headline")),
            Says(r"max\.poll\.interval\.ms( of .*)? (was )?exceeded|did not poll|not poll(ed)? (in|for)"),
        ],
        logged=[Says(r"max\.poll|poll|left|leave")],
        never=r"autoscal|swings|a deploy|restarted one after",
        harmful=_RAISES_SESSION,
    ),
    "new topics": Rule(
        "which topic was created that the members' pattern fits: they share it since then",
        [Says(r"topic|subscri", True, True, ("finding", "cause", "headline"))],
        logged=[Says(r"topic|subscri", False, True, ("finding", "cause", "headline"))],
        causes=ORDERLY | {Cause.TOPICS_CHANGED, Cause.SUBSCRIPTION_CHANGED},
        never=r"two app|different topics|does not read|no fetch|frozen|fell silent",
        harmful=rf"{_TOUCHES_POLL}|{_RAISES_SESSION}",
    ),
    "outside commit refused": Rule(
        "that a tool was not allowed to set the offsets, as the group has members, and which tool",
        [Says(r"refus|reject|UNKNOWN_MEMBER_ID", True, True, ("finding", "headline"))],
        causes=ORDERLY,
        leads=True,
        never=r"set the committed offset|offsets? (was|were) (re)?set|nothing unusual|too slow|restart",
        harmful=rf"{_TOUCHES_POLL}|{_RAISES_SESSION}",
    ),
    "password refused": Rule(
        "that a client is refused because of its password",
        [Says(r"SASL|authenticat|password|credential")],
        logged=[Says(r"SASL|authenticat|password|credential", names=False)],
        anywhere=True,
    ),
    "certificate refused": Rule(
        "that a client and the broker do not agree on a certificate",
        [Says(r"certificate|handshake", names=False)],
        anywhere=True,
    ),
    "loss": Rule("nothing: the packets are missing in the capture, not in the group"),  # judged by lossy.py
}


GRADES: Final = ("first", "somewhere", "wrong")
"""Whether the essential is said by the first sentence, somewhere in what is read first, or not at all."""


@dataclass
class Verdict:
    """How a report does for one run.

    :ivar missing: words of essential statements that are not there
    :ivar false_criticals: critical findings that do not name the essential
    :ivar wrong: causes, blame and warnings that are not right
    :ivar harmful: advice that would harm
    :ivar said: all statements that were read
    :ivar first: the first sentence, and `is_first` whether it names the essential
    :ivar incident: the name of the capture, and `damage` what happened to it
    """

    run: Run
    first: str = ""
    is_first: bool = False
    incident: str = ""
    damage: str = ""
    missing: list[str] = field(default_factory=list)
    false_criticals: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    harmful: list[str] = field(default_factory=list)
    said: list[Statement] = field(default_factory=list)

    @property
    def names(self) -> bool:
        """Whether the essential is named and nothing wrong is said instead."""
        return not (self.missing or self.wrong)

    @property
    def title(self) -> str:
        return f"{self.incident}, {self.run.group} ({self.run.kind}, {' and '.join(self.run.reads)})"

    @property
    def grade(self) -> str:
        """One of `GRADES`."""
        if self.is_first:
            return "first"
        return "wrong" if self.missing else "somewhere"

    @property
    def false(self) -> list[str]:
        """All sentences that are not true."""
        return list(dict.fromkeys([*self.wrong, *self.false_criticals, *self.harmful]))

    @property
    def is_good(self) -> bool:
        return self.names and not (self.false_criticals or self.harmful)


def statements_of(analysis: Analysis, run: Run, anywhere: bool = False) -> Iterator[Statement]:
    """What the report of an analysis says first of a run."""
    histories = [history for history in analysis.histories if anywhere or history.group.group_id == run.group]
    for history in histories:
        yield from _of_group(history, run)
    if anywhere:
        for loss in analysis.losses:
            yield Statement("loss", "", "", loss.what, "", 0)


def _of_group(history: GroupHistory, run: Run) -> Iterator[Statement]:
    digest = digest_of(history)
    text = f"{digest.headline.text}; {digest.sentence}"
    yield Statement("headline", "", digest.severity, text, "", history.group.first_ns)
    for finding in history.findings:
        text = f"{finding.subject or ''}: {finding.text}"
        yield Statement(
            "finding", finding.detector, finding.severity, text, finding.advice, finding.from_ns, finding.to_ns is None
        )
    for outage in history.outages:
        yield Statement(
            "outage", outage.kind, "", f"{outage.broker}: {outage.text}", "", outage.from_ns, outage.to_ns is None
        )
    for rebalance in _affected(history.rebalances, run):
        text = f"{rebalance.client_id or rebalance.instance_id or ''}: {rebalance.detail}"
        yield Statement("cause", rebalance.cause, "", text, "", rebalance.started_ns)


def _affected(rebalances: Sequence[Rebalance], run: Run) -> Iterator[Rebalance]:
    """The rebalances in the time of the incident, until what follows from it is over, or the run ends its members."""
    start = min((act.at_ns for act in run.acts), default=run.from_ns) - _BEFORE_NS
    end = max((act.until_ns or act.at_ns for act in run.acts), default=run.to_ns)
    end = min(end + run.session_ms * 1_000_000 + _AFTER_NS, run.to_ns)
    yield from (rebalance for rebalance in rebalances if start <= rebalance.started_ns <= end)


def judge(analysis: Analysis, run: Run) -> Verdict:
    """Judge what the report says of a run by the rule of its kind."""
    rule = RULES[run.kind]
    said = list(statements_of(analysis, run, rule.anywhere))
    verdict = Verdict(run, said=said)
    _judge_first(analysis, rule, verdict)
    if not said:
        verdict.missing.append("the group itself")
    if rule.leads and not (verdict.is_first or run.drawn):  # of drawn ones that is a grade of its own
        verdict.missing.append("the essential in the first sentence")
    for needed in rule.needs(run):
        if not any(needed.fits(statement, run.victims) for statement in said):
            verdict.missing.append(needed.words)
    if not rule.anywhere:  # else it is about other runs, too
        for statement in said:
            _judge_statement(statement, rule, run, verdict)
    return verdict


def says_clocks_differ(analysis: Analysis) -> bool:
    """Whether the report says anywhere that the clocks of its sources are not the same."""
    text = json.dumps(to_json(analysis.histories, analysis.losses), default=str)
    return (
        re.search(r"\bclocks?\b[^\"]*\b(differ|ahead|behind|apart|off)\b|\b(differ|ahead|behind)[^\"]*\bclock", text)
        is not None
    )


def _judge_first(analysis: Analysis, rule: Rule, verdict: Verdict) -> None:
    """Judge the sentence that the report begins with; of a run without a group, any with which a group begins."""
    run = verdict.run
    histories = [history for history in analysis.histories if rule.anywhere or history.group.group_id == run.group]
    opening = rule.opens(run)
    for digest in digests(histories):
        text = digest.headline.text
        if rule.never is not None and not rule.anywhere and re.search(rule.never, text, re.I):
            right = False
        elif opening is None:
            right = digest.severity == "quiet"
        else:
            known = not opening.names or any(victim in text for victim in run.victims)
            right = known and re.search(opening.words, text, re.I) is not None
            right = right and not (rule.wrongly and re.search(rule.wrongly, text, re.I))
        if not verdict.first or (right and rule.anywhere):
            verdict.first, verdict.is_first = text, right


def _judge_statement(statement: Statement, rule: Rule, run: Run, verdict: Verdict) -> None:
    essential = any(needed.fits(statement, run.victims) for needed in rule.needs(run))
    if statement.severity == "critical" and statement.place == "finding":
        # A critical finding says that somebody has to act now: not of a broker that is back.
        known = essential or (rule.blames_broker and any(victim in statement.text for victim in run.victims))
        if not known or (rule.blames_broker and statement.is_open and _is_over(run)):
            verdict.false_criticals.append(str(statement))
    if statement.place == "finding" and statement.severity != "info" and not rule.warns:
        verdict.wrong.append(str(statement))
    if statement.place == "cause" and _is_wrong_cause(statement, rule, run):
        verdict.wrong.append(str(statement))
    if rule.wrongly and Says(rule.wrongly).fits(statement, run.victims):
        verdict.wrong.append(str(statement))
    if statement.place == "outage" and not (rule.blames_broker or rule.outages):
        verdict.wrong.append(str(statement))
    if statement.place == "finding" and _is_of_another_kind(statement, run):
        verdict.wrong.append(str(statement))
    if rule.never and re.search(rule.never, str(statement), re.I):
        verdict.wrong.append(str(statement))
    if rule.harmful and re.search(rule.harmful, statement.advice, re.I):
        verdict.harmful.append(str(statement))


_ONLY_OF: Final = {
    r"\ba deploy\b": ("deploy", "static deploy"),
    r"two processes|(same|one) group\.instance\.id": ("fenced", "fenced in turns", "instance in use"),
    r"from outside": ("offset reset", "outside commit refused"),
    r"^[^;]*came back \d+ times": ("crash loop", "crash loop in a log", "fenced", "instance in use", "broker outage"),
}
"""What is said only where this was done."""


def _is_of_another_kind(statement: Statement, run: Run) -> bool:
    return any(
        re.search(words, statement.text, re.I) is not None and run.kind not in kinds
        for words, kinds in _ONLY_OF.items()
    )


_OF_BROKERS: Final = r"broker|coordinator|outage|nobody was answered"


def _is_within(statement: Statement, run: Run) -> bool:
    """Whether it is said of a time in which no broker answered; a client that is late after that is late."""
    return any(
        act.at_ns <= statement.from_ns <= (act.until_ns or act.at_ns + run.session_ms * 1_000_000) for act in run.acts
    )


def _is_over(run: Run) -> bool:
    """Whether all that was done was over some time before the run ended."""
    return all(act.until_ns is not None and act.until_ns + 2 * _SECOND < run.to_ns for act in run.acts)


def _is_wrong_cause(statement: Statement, rule: Rule, run: Run) -> bool:
    cause = Cause(statement.kind)
    if rule.blames_broker:
        return cause in SILENCES and _is_within(statement, run) and not re.search(_OF_BROKERS, statement.text)
    if cause == Cause.COORDINATOR_FAILOVER:
        return True  # no broker was touched
    if rule.causes is not None and cause not in rule.causes:
        return True
    return cause in SILENCES and not any(victim in statement.text for victim in run.victims)

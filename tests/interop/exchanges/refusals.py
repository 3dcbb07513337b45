"""What `kw.check` finds is refused, with the error code that it names."""

from __future__ import annotations

from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage
from tests.support.refused import CASES, Member


@script(settings="consumer")
def refused_whatever_the_state(stage: Stage) -> None:
    """Each rule of the schemas, in a request that is right otherwise."""
    a = stage.member("a")
    stage.stable(a)
    member = Member(stage.group, a.id, a.generation)
    with stage.off_the_record():  # answers differ in texts and addresses, which other scripts compare
        for case in CASES:
            a.connection.call(case.request(member), case.version, case.finding(member).error)

"""What `kw.check` finds is refused, with the error code that it names."""

from __future__ import annotations

import kcoord_wire as kw
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage
from tests.support.refused import CASES, Member


@script(settings="consumer")
def refused_whatever_the_state(stage: Stage) -> None:
    """Each rule of the schemas, in a request that is right otherwise; those of share groups where these are served."""
    a = stage.member("a")
    stage.stable(a)
    member = Member(stage.group, a.id, a.generation)
    with stage.off_the_record():  # answers differ in texts and addresses, which other scripts compare
        served = {api.api_key for api in a.connection.call(kw.ApiVersionsRequest(), 0).api_keys}
        for case in CASES:
            request = case.request(member)
            if kw.registry.by_class(type(request)).api_key in served:
                a.connection.call(request, case.version, case.finding(member).error)
            else:
                assert type(request).__name__.startswith("ShareGroup")

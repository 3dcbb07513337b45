"""One measurement of our assignors: `python -m tests.bench.assignors.ours`, a question on standard input.

Question and answer are those of tests/support/java/Assign.java, with the processor time of the process, and `peak`: by
how many bytes the first call made the process's resident memory grow at most, its result included (Linux).
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from kcoord_wire.assignors import ASSIGNORS, Assignor, MemberSubscription, Partitions, RebalanceProtocol


def resident(which: str) -> int:
    """VmRSS or VmHWM, in bytes."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(which)]
    return int(line.split()[1]) * 1024


def holding(assignor: Assignor, topics: list[str], given: Partitions) -> MemberSubscription:
    """The subscription, as a leader reads it, of a member that has its partitions since generation 1."""
    owned = {topic: list(numbers) for topic, numbers in given.items()}
    data = b"" if assignor.on_join is None else assignor.on_join(topics, owned, 1)
    if assignor.protocol is RebalanceProtocol.EAGER:
        return MemberSubscription(topics, user_data=data)
    return MemberSubscription(topics, owned, 1, user_data=data)


def members_of(asked: dict[str, Any], assignor: Assignor, counts: dict[str, int]) -> dict[str, MemberSubscription]:
    number, change = asked["size"][0], asked["change"]
    members = {
        f"member-{each:05}": MemberSubscription([*counts][1 if asked["odd"] and each == 0 else 0 :])
        for each in range(number)
    }
    if change != "none":
        given = assignor.assign(counts, members)
        members = {each: holding(assignor, [*member.topics], given[each]) for each, member in members.items()}
        if change == "join":
            members[f"member-{number:05}"] = MemberSubscription([*counts])
        else:
            del members[f"member-{number // 2:05}"]
    return members


def measure(asked: dict[str, Any]) -> dict[str, Any]:
    assignor = ASSIGNORS[asked["assignor"]]
    _, topics, partitions = asked["size"]
    counts = {f"topic-{topic:04}": partitions for topic in range(topics)}
    members = members_of(asked, assignor, counts)
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again at what is resident now
    cpu: list[float] = []
    peak = 0
    while len(cpu) < asked["calls"] and (len(cpu) < 3 or sum(cpu) < asked["seconds"]):
        start = time.process_time()
        given = assignor.assign(counts, members)
        cpu.append(time.process_time() - start)
        peak = peak or resident("VmHWM") - before
        assert len(given) == len(members)
        del given
    return {"cpu": cpu, "peak": peak}


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.stdin.read()))))

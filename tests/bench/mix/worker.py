"""One process of `python -m tests.bench mix`: a workload, in a new process or after a long history.

Answers with nanoseconds of the thread's processor time of each pass, the page faults of a pass, and the most memory
that the process ever had.
"""

from __future__ import annotations

import gc
import json
import resource
import time

from ..checkouts import asked
from ..runner import pin
from .workloads import WORKLOADS, heap, live


def main() -> None:
    question = asked()
    pin()
    quick, number = question["quick"], question["number"]
    call = WORKLOADS[question["workload"]].make(quick)
    call()
    kept = live(number, quick) if question["lived"] else heap(number, question["of"])
    gc.collect()
    gc.freeze()
    clock = time.thread_time_ns
    end = clock() + 1e9 * question["warm"]
    while clock() < end:
        call()
    found = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    end = clock() + 1e9 * question["seconds"]
    while not found or clock() < end:
        start = clock()
        call()
        found.append(clock() - start)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    faults = (usage.ru_minflt - before) / len(found)
    print(json.dumps({"ns": found, "faults": faults, "kilobytes": usage.ru_maxrss}))
    del kept


if __name__ == "__main__":
    main()

"""Recorded steps of the Go library, and ours beside them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kcoord_wire as kw
from kcoord_wire.marshal.log import RawEntry
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import Claim, Rules, WorldState

_GZIP_MAGIC = b"\x1f\x8b"


def check_world(path: Path) -> tuple[int, list[str]]:
    """Run the steps of a file; how many were right, and what was wrong with the others.

    :param path: lines of JSON, gzipped or not, whatever its name: ``now`` (s), ``msg``, ``decoded``, ``reencoded``,
        ``state`` (null is none); ``reset`` begins a run. Empty lines and those without ``msg`` are not steps
    """
    right, wrong = 0, []
    world = WorldState(Rules.LIBRARY)
    for number, step in enumerate(_steps(path), start=1):
        if step.get("reset"):
            world = WorldState(Rules.LIBRARY)
        faults = list(_faults(world, number, step))
        wrong += [f"step {number}: {fault}" for fault in faults]
        right += not faults
    return right, wrong


def _steps(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        is_gzipped = file.read(2) == _GZIP_MAGIC
    with gzip.open(path, "rt", encoding="utf-8") if is_gzipped else path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.strip():
                continue
            step = json.loads(line)
            if not isinstance(step, dict) or not isinstance(step.get("msg", ""), str):
                raise ValueError(f"not a step: {line.strip()[:80]}")
            if "msg" in step:
                yield step


def _faults(world: WorldState, offset: int, step: dict[str, Any]) -> Iterator[str]:
    entry = read_entry(RawEntry(0, offset, -1, False, step["msg"].encode()))
    is_message = not isinstance(entry.message, str)
    is_removed = step["msg"].startswith("ReleaseGroup/")  # HEAD of the Go library has no such message any more
    # The Go library decodes a negative partition and crashes on it; the schema's bound refuses it.
    is_bound = step["decoded"] and not is_message and "partition: the number is not between" in entry.message
    if not is_removed and not is_bound and is_message != step["decoded"]:
        yield f"{step['msg']!r}: {entry.message}"
    if is_message and step["decoded"] and (text := kw.encode(entry.message, 0).decode()) != step["reencoded"]:
        yield f"{step['msg']!r} is written as {text!r}"
    world.apply(entry, step["now"])
    found = [_as_go(world, claim, step["now"]) for claim in world.claims.values() if _was_held(claim)]
    if sorted(found, key=_order) != sorted(step["state"] or [], key=_order):
        yield f"{step['msg']!r} at {step['now']}: {found}, not {step['state']}"


def _was_held(claim: Claim) -> bool:
    """A refused release or an unused offset creates no claim in the Go library."""
    return claim.last_heartbeat != 0 or claim.last_release != 0


def _as_go(world: WorldState, claim: Claim, now: int) -> dict[str, Any]:
    return {
        "Group": claim.place.group_id,
        "Topic": claim.place.topic,
        "Part": claim.place.partition,
        "InstanceID": claim.instance_id,
        "ClientID": claim.client_id,
        "LastHeartbeat": claim.last_heartbeat,
        "LastRelease": claim.last_release,
        "CurrentOffset": claim.current_offset,
        "Claimed": world.is_claimed(claim, now),
    }


def _order(state: dict[str, Any]) -> tuple[str, str, int]:
    return state["Group"], state["Topic"], state["Part"]

"""A member that is kafkajs: tests/interop/node/member.js, with what npm fetches for it into build/interop."""

from __future__ import annotations

import shutil
from typing import Final

from tests.support.clients.members import Client
from tests.support.kafka_broker import tool
from tests.support.processes import ROOT, locked, run_tool

_PROGRAM: Final = ROOT / "tests" / "interop" / "node"
_ALLOWED = {
    "Connection: Response Heartbeat.*: The group is rebalancing": "it logs this answer as an error, and then rejoins",
    "Runner: The group is rebalancing, re-joining": "it warns of each rebalance that others begin",
}


def kafkajs_client() -> Client:
    """Fetch what it needs, and give the client."""
    node, npm = tool("node", "nodejs"), tool("npm", "npm")
    modules = ROOT / "build" / "interop" / "node"
    modules.mkdir(parents=True, exist_ok=True)
    for name in "package.json", "package-lock.json", ".npmrc":
        shutil.copyfile(_PROGRAM / name, modules / name)
    with locked(modules):
        run_tool([npm, "ci", "--ignore-scripts"], modules)
    environment = {"NODE_PATH": str(modules / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    return Client("kafkajs", (node, str(_PROGRAM / "member.js")), _ALLOWED, environment)

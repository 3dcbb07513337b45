"""A schema of a few kilobytes whose structs, were each written out where it is used, would be billions."""

from __future__ import annotations

import json

LEVELS = 30


def doubling_schema(fields: int = 2) -> str:
    """A message of nested arrays: each struct has so many fields that hold arrays of the next one."""

    def arrays(level: int) -> list[dict[str, str]]:
        if level == LEVELS:
            return [{"name": "Leaf", "type": "int32", "versions": "0+", "about": "A leaf."}]
        return [{"name": f"F{i}", "type": f"[]S{level}", "versions": "0+", "about": "Items."} for i in range(fields)]

    structs = [{"name": f"S{level}", "versions": "0+", "fields": arrays(level + 1)} for level in range(LEVELS)]
    return json.dumps(
        {
            "type": "data",
            "name": "Doubling",
            "validVersions": "0",
            "flexibleVersions": "0+",
            "fields": arrays(0),
            "commonStructs": structs,
        }
    )

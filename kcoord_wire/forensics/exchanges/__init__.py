"""Frames to exchanges: each request with its response, decoded into rows.

To decode another API: its columns in `decode`, its rows in `rows`. To add a kind of sighting: `model.SightingKind`,
then `sightings`, or `clusters` for what tells clusters apart.
"""

__all__: list[str] = []

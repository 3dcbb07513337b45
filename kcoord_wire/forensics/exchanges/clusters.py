"""Groups of one name in two clusters: exchanges get the cluster in the name of their group.

Laws:

* A name changes only where sources show the group in two clusters or more: ``billing`` becomes ``billing @ ID``.
* The cluster of an exchange is that which a Metadata response of the same source and broker states (sightings of kind
  CLUSTER); of a broker without one it is that of its source, if all Metadata there state one. An exchange whose cluster
  is not known keeps the name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.model import BROKER_IN_NAME, SightingKind

Place = tuple[str, str]
"""Source, and address of a broker."""


class Clusters(NamedTuple):
    """What the sources show of clusters.

    :ivar of_broker: the cluster id of each broker of a source
    :ivar of_source: the cluster ids of each source
    """

    of_broker: Mapping[Place, str]
    of_source: Mapping[str, frozenset[str]]

    @property
    def are_several(self) -> bool:
        return len(frozenset().union(*self.of_source.values())) > 1

    def of(self, place: Place) -> str | None:
        """Return the cluster id of a broker; None where that is not known."""
        ids = self.of_source.get(place[0], frozenset())
        return self.of_broker.get(place) or (next(iter(ids)) if len(ids) == 1 else None)


def read_clusters(sightings: pa.Table) -> Clusters:
    """Return the clusters in rows of `Sighting`."""
    rows = sightings.filter(pc.equal(sightings["kind"], str(SightingKind.CLUSTER)))
    of_source: dict[str, set[str]] = defaultdict(set)
    of_broker: dict[Place, str] = {}
    for place, cluster_id in zip(_places(rows), rows["text"].to_pylist(), strict=True):
        of_source[place[0]].add(cluster_id)
        of_broker[place] = cluster_id
    return Clusters(of_broker, {source: frozenset(ids) for source, ids in of_source.items()})


def _places(rows: pa.Table) -> Iterator[Place]:
    connections = rows["connection"].combine_chunks().cast(pa.string())
    brokers = pc.struct_field(pc.extract_regex(connections, BROKER_IN_NAME), "broker")
    return zip(rows["source"].to_pylist(), (name or "" for name in brokers.to_pylist()), strict=True)


def names_by_cluster(groups: Iterable[tuple[str, Place]], clusters: Clusters) -> dict[tuple[str, Place], str]:
    """Return the new names of the groups that are in several clusters, by group id and place.

    :param groups: group ids with the places where they were seen
    """
    found = [(group_id, place, clusters.of(place)) for group_id, place in set(groups)]
    ids: dict[str, set[str]] = defaultdict(set)
    for group_id, _, cluster_id in found:
        ids[group_id] |= {cluster_id} if cluster_id else set()
    return {
        (group_id, place): f"{group_id} @ {cluster_id}"
        for group_id, place, cluster_id in found
        if cluster_id is not None and len(ids[group_id]) > 1
    }


def rename_groups(exchanges: pa.Table, sightings: pa.Table) -> pa.Table:
    """Return the exchanges, with the cluster in the names of groups that are in several.

    :param exchanges: rows of `Exchange`
    :param sightings: rows of `Sighting`
    """
    clusters = read_clusters(sightings)
    if not clusters.are_several:
        return exchanges
    keys = list(zip(exchanges["group_id"].to_pylist(), _places(exchanges), strict=True))
    names = names_by_cluster(keys, clusters)
    if not names:
        return exchanges
    renamed = pa.array([names.get(key, key[0]) for key in keys], pa.string())
    kind = exchanges["group_id"].type
    index = exchanges.schema.get_field_index("group_id")
    return exchanges.set_column(
        index, "group_id", renamed.dictionary_encode() if pa.types.is_dictionary(kind) else renamed
    )

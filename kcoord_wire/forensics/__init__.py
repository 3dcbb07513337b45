"""Why a consumer group rebalanced: from frames or the records of ``__consumer_offsets`` to histories and causes.

No Spark here: what this folder does to one group, kcoord_wire.spark does to many.
"""

from kcoord_wire.forensics.model import Cause, GroupHistory

__all__ = ["Cause", "GroupHistory"]

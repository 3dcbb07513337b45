"""Groups watched from outside, by polls of the Admin API: what changes, who is in them, how far behind they are.

    polling ── Poll ──> groups (Watched) ──> Change          lines on the terminal
                          │  group, causes, lags     └──> GroupHistory    the tables of a report
                          └──> Snapshot ──> view, metrics

Nothing here joins a group, commits, or creates anything. `polling` and `host` have the cluster, the clock and the
terminal; the other modules are pure: observations and times are arguments.
"""

from kcoord_wire.watch.groups import Limits, Watched

__all__ = ["Limits", "Watched"]

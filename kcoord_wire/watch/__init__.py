"""Groups watched from outside, by polls of the Admin API: what changes, who is in them, how far behind they are.

    host (AdminPolls) ── Poll ──> groups (Watched) ──> Change          lines on the terminal
                                    │  polled_group, seen  └──> GroupHistory    the tables of a report
                                    └──> Snapshot ──> view, metrics

Nothing here joins a group, commits, or creates anything. `host` has the cluster, the clock and the terminal; the other
modules are pure: observations and times are arguments.

To change what `kcoord watch` shows of a group: `polled_group` (rebalances, members, lag), the table of causes in
`seen`, then `view` (screen, JSON) and the samples in `groups`; docs/watch.md says it.
"""

from kcoord_wire.watch.groups import Limits, Watched

__all__ = ["Limits", "Watched"]

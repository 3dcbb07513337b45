"""The state machines of "the 0.8 consumer-coordinator draft": its coordinator and its consumer.

Where the coordinator does more than the draft describes, because the draft as written would not work:

* The necessity check (section 9, step 3) compares what is in ZooKeeper. A consumer that has registered again, after a
  failover or an offset out of range, would find the owners unchanged and never be started; so a consumer that is to
  own partitions and was not started since it registered makes a rebalance necessary (`context.why_rebalance`).
* Owners are written last (4.6). A coordinator that takes over between 4.4 and 4.6 would not know who may be fetching;
  so the group's node has a mark from 4.3 to 4.6, and the longest session timeout (`zookeeper.layout.GroupRecord`).
* After an election the former owners are waited for (section 2), at most for that timeout (`term`).
* Answers name no request, so a late one could be taken for the answer to a later request; they are counted
  (`purgatory`).
* A consumer that answers pings but neither StopFetcher nor StartFetcher would stop its group for ever; it fails when
  the retries of the rebalance are used up (`rebalance`).
* A consumer whose connection ends has failed at once; the draft waits for its pings.
* Numbers of streams, patterns, session timeouts and ids from outside have limits (`subscription`, `groups`).
* Election, lease, guarded writes and the new epoch of each term are those of `zookeeper.leadership`.
* Groups may be divided into subsets, each with a coordinator (section 1); the procedures know one (`coordinator`).

To change elections, and who coordinates which groups: `coordinator`; registration, failures, answers and what follows
an election: `term`; the procedure of section 9: `rebalance`; topics, their switch, the assignment: `context`; pings and
commits: `purgatory`; a consumer: `consumer`. Tests: tests/central/draft, by the procedure's name, and the virtual
cluster of worlds.central.
"""

__all__: list[str] = []

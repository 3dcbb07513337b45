"""Scenarios whose rebalances are known, their frames and records, and how well the pipeline explains them.

`world` plays consumers on the virtual cluster and records what is on the wire and in the log; `scenarios` is the list
of lives; `labels` says what each rebalance was, out of the coordinator's accounts and the members' own events;
`scorer` holds what the pipeline inferred against that; `report` writes it down.
"""

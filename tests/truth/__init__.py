"""Scenarios whose rebalances are known, their frames and records, and how well the pipeline explains them.

`world` plays consumers on the virtual cluster and records the wire and the log; `scenarios` lists what is played;
`labels` states what each rebalance was, from the coordinator's accounts and the members' own events; `scorer` compares
that with what the pipeline inferred; `report` writes the result; `causes` writes docs/causes.md.
"""

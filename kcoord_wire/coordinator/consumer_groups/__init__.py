"""Groups of KIP-848: pure objects, events in, effects out; no socket, clock or randomness.

To change what is checked or answered: `heartbeat.py`; epochs, time-outs, targets and what a member holds:
`progress.py`, and `epochs.py` where share groups have the same; classic members and conversions between the protocols:
`classic_members.py`; what the log keeps: `records.py`. Then rows in the tests of the same name; `make interop` compares
with Kafka 4.4.
"""

__all__: list[str] = []

"""Who connects to the coordinator, and what it may do: SASL, rules, and requests cut down to what they allow.

To change what an api is authorised as: its row in `core/apis.py`, or, where a row cannot say it, `authorization.py`.
"""

__all__: list[str] = []

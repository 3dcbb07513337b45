"""Who connects to the coordinator, and what it may do: authentication, permissions, and requests cut down to them."""

__all__: list[str] = []

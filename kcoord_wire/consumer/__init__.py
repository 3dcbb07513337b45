"""The members' side of the group protocol: the member machine, its events, subscriptions and assignments."""

__all__: list[str] = []

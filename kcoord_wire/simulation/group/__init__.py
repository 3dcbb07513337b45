"""The group protocol in the simulated world: coordinator, processes, laws, and scripts of faults."""

__all__: list[str] = []

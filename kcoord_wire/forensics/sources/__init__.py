"""Where frames and records come from: captures, recordings, log segments, a live topic."""

__all__: list[str] = []

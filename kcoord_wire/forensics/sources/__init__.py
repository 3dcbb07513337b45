"""Where frames and records come from: captures, recordings, log segments, a live topic.

To read another kind of file: which it is, in `files`; its rows, in `frames`.
"""

__all__: list[str] = []

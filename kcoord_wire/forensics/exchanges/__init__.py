"""Frames to exchanges: each request with its response, decoded into rows."""

__all__: list[str] = []

"""The error of a broken law."""

from __future__ import annotations


class ViolationError(AssertionError):
    """A simulated system has broken one of its laws.

    :ivar law: the law's name
    """

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law

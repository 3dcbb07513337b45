"""A blocking client of a broker of the rewrite, for tests that want to say each request themselves."""

from __future__ import annotations

from typing import Any

import kcoord_wire as kw
from kcoord_wire.central.dialects import version_of
from tests.support.wire import Wire


class RewriteWire(Wire):
    """One connection."""

    def ask(self, request: Any) -> Any:
        """Send a request and give its response."""
        return self.answer_to(request, self.send(request, version_of(type(request))))

    def answer_to(self, request: Any, correlation_id: int) -> Any:
        """Give the response to a request that was sent, which must be the next one to come."""
        header, response = kw.decode_response(
            self.receive_body(),
            kw.registry[type(request).__name__.replace("Request", "Response")].cls,
            version_of(type(request)),
        )
        assert header.correlation_id == correlation_id
        return response

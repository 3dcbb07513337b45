"""Metrics in Prometheus's text format, and the port at which they are scraped.

Laws:

* prometheus-client, of the extra ``serve``, is imported at the first scrape.
* Each exporter has its own registry, and samples are made at a scrape, in the scraping thread.
* What clients may cost is bounded as `kcoord_wire.kernel.http_server` says.
* The field Host of a scrape has an address, or a name of this machine: others are made to lead here (DNS rebinding).
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.extras import require
from kcoord_wire.kernel.http_server import HttpServer, Request, Response

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]+)?")
_log = logging.getLogger("kcoord_wire.metrics")

Value = float | tuple[Sequence[tuple[str, float]], float]
"""A sample: a number; for a histogram its cumulative buckets and its sum."""


def family(kind: str, name: str, text: str, values: Mapping[Any, Value], *labels: str) -> Metric:
    """Return a metric with its samples.

    :param kind: ``Counter``, ``Gauge`` or ``Histogram``
    :param name: without the prefix ``kcoord_``, and of a counter without the suffix ``_total``
    :param values: by the values of `labels`
    :raises MissingLibraryError: prometheus-client is not installed
    """
    metric: Any = getattr(_prometheus("metrics_core"), f"{kind}MetricFamily")(f"kcoord_{name}", text, labels=labels)
    for label_values, value in values.items():
        metric.add_metric(label_values, *(value if isinstance(value, tuple) else (value,)))
    made: Metric = metric
    return made


class Exporter:
    """Something whose samples are scraped; a subclass has `collect`."""

    def collect(self) -> Iterable[Metric]:
        """Yield the current samples; called in the scraping thread."""
        raise NotImplementedError

    def describe(self) -> list[Metric]:
        """Return no names in advance: `collect` has them all, and must not run before there is something to show."""
        return []

    @cached_property
    def registry(self) -> CollectorRegistry:
        """A registry of these metrics only.

        :raises MissingLibraryError: prometheus-client is not installed
        """
        registry: CollectorRegistry = _prometheus("registry").CollectorRegistry()
        registry.register(self)
        return registry

    def exposition(self) -> bytes:
        """Return all samples in Prometheus's text format."""
        text: bytes = _prometheus("exposition").generate_latest(self.registry)
        return text

    def serve(self, host: str = "127.0.0.1", port: int = 0, *, known: Iterable[str] = ()) -> Scrapes:
        """Answer scrapes over HTTP until the server is stopped. Every client that reaches the port can read them.

        :param port: 0 takes a free one
        :param known: names by which clients reach this machine, besides `host`, its own and ``localhost``
        :raises OSError: the port cannot be opened
        """
        expose = _prometheus("exposition").make_wsgi_app(self.registry)
        try:
            return Scrapes(expose, host, port, known)
        except OSError as error:
            raise OSError(error.errno, f"port {port} for metrics: {error.strerror}") from error


class Scrapes(HttpServer):
    """The metrics port, at any path.

    :param expose: an application of WSGI
    :param known: names of this machine
    """

    def __init__(self, expose: Any, host: str, port: int, known: Iterable[str]) -> None:
        self._expose = expose
        self._known = {name.lower() for name in (host, "localhost", socket.gethostname(), *known)}
        super().__init__("metrics port", host, port, _log)

    def names(self, host: str) -> bool:
        """Return whether this is an address, or one of the names."""
        parts = _HOST.fullmatch(host.lower())
        return parts is not None and (parts[1] in self._known or _is_address(parts[1].strip("[]")))

    def answer(self, request: Request) -> Response:
        """Return the samples in the form that the client wants."""
        environment = {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            "HTTP_ACCEPT": request.fields.get("accept"),
            "HTTP_ACCEPT_ENCODING": request.fields.get("accept-encoding"),
        }
        heads: list[tuple[str, list[tuple[str, str]]]] = []
        body = b"".join(self._expose(environment, lambda *head: heads.append(head)))
        [(status, fields)] = heads
        return Response(int(status[:3]), body, "text/plain", dict(fields))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _prometheus(module: str) -> Any:
    require("prometheus_client", "serve", "the metrics port")
    return require(f"prometheus_client.{module}", "serve", "the metrics port")

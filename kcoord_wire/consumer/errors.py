"""The errors of a connection to a broker.

Laws:

* All are `BrokerError`, and name the broker. What is lost, silent or wrong at one moment may work on another connection
  (`retriable`); refused credentials, or a version that one side lacks, will not.
* One error ends a connection, and every request that waits on it fails with that same error.
"""

from __future__ import annotations

from typing import ClassVar


class BrokerError(Exception):
    """A broker could not be asked, or its answer could not be understood.

    :ivar address: ``HOST:PORT`` of the broker
    :ivar retriable: whether the same request may succeed on another connection
    """

    retriable: ClassVar[bool] = True

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(address, detail)
        self.address = address
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.address}: {self.detail}"


class ConnectionLostError(BrokerError):
    """The connection could not be made, or has ended: requests in flight may or may not have been carried out."""


class RequestTimeoutError(BrokerError):
    """A response has not come in time. The connection is closed: responses come in the order of the requests, so none
    behind this one would have come either."""


class ForeignBytesError(BrokerError):
    """The peer has sent what is not the response to the oldest request. The connection is closed."""


class UnsupportedVersionError(BrokerError):
    """The broker and this package have no version of a request in common. The connection remains."""

    retriable = False


class AuthenticationError(BrokerError):
    """TLS or SASL has failed: a certificate is not trusted, or the credentials are refused."""

    retriable = False

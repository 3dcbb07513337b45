"""Hosts for clients: a network namespace for each, on one bridge with the brokers, so that a host can be cut off.

Laws:

* Needs Linux, root and iproute2; a thread that has entered a host opens its sockets there, and so do its children.
* What a host sends to a broker that it is cut off from is on the bridge, and reaches nobody: the capture has it, as one
  has that was taken in front of a firewall.
* Leaving the block takes away all of it.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self

_CLONE_NEWNET: Final = 0x40000000
"""Of setns(2); `os.setns` came with Python 3.12."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_BRIDGE: Final = "02:00:00:00:00:01"
"""The link address of a bridge: without one of its own it has the lowest of its ports, which changes as they come."""
_ABSENT: Final = "02:00:00:00:00:fe"
"""The link address of no interface."""
_FIRST_BROKER: Final = 11
_FIRST_POD: Final = 101
_NETS: Final = 100


def _ip(*commands: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True, capture_output=True)


class Pods:
    """The network of one hall, while the block is entered.

    :ivar bridge: name of the interface on which all is captured
    """

    def __init__(self, brokers: int) -> None:
        number = os.getpid() % _NETS
        self.bridge = f"hall{number}"
        self._net = f"10.{77 + number}.0"
        self._brokers = brokers
        self._hosts: dict[str, int] = {}
        self._making = threading.Lock()

    def __enter__(self) -> Self:
        addresses = [self.gateway, *(self.broker(node) for node in range(1, self._brokers + 1))]
        self._forget()
        _ip(
            f"link add {self.bridge} address {_BRIDGE} type bridge",
            *(f"addr add {address}/24 dev {self.bridge}" for address in addresses),
            f"link set {self.bridge} up",
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._forget()

    def _forget(self) -> None:
        spaces = subprocess.run(["ip", "netns", "list"], text=True, check=True, capture_output=True).stdout
        for space in re.findall(rf"^{self.bridge}-\d+", spaces, re.M):
            _ip(f"netns del {space}")
        with suppress(subprocess.CalledProcessError):
            _ip(f"link del {self.bridge}")

    @property
    def gateway(self) -> str:
        """An address of the bridge for servers other than brokers."""
        return f"{self._net}.1"

    def broker(self, node: int) -> str:
        """The address of a broker, from 1 on."""
        return f"{self._net}.{_FIRST_BROKER + node - 1}"

    def address(self, host: str) -> str | None:
        """The address of a client's host, where there is that host."""
        return f"{self._net}.{_FIRST_POD + self._hosts[host]}" if host in self._hosts else None

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """What this thread opens or starts in the block is on that host."""
        number = self._number(host)
        outside = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
        space = os.open(f"/var/run/netns/{self._space(number)}", os.O_RDONLY)
        try:
            _enter(space)
            yield
        finally:
            _enter(outside)
            os.close(space)
            os.close(outside)

    def cut(self, host: str, brokers: Sequence[str] = ()) -> None:
        """Nothing passes between a host and the network; or nothing reaches these brokers from there."""
        number = self._number(host)
        if not brokers:
            _ip(f"link set {self._port(number)} down")
        for broker in brokers:
            self._in(number, f"neigh replace {broker} lladdr {_ABSENT} dev eth0 nud permanent")

    def mend(self, host: str, brokers: Sequence[str] = ()) -> None:
        """All passes again."""
        number = self._number(host)
        if not brokers:
            _ip(f"link set {self._port(number)} up")
        for broker in brokers:
            self._in(number, f"neigh del {broker} dev eth0")

    def _in(self, number: int, command: str) -> None:
        subprocess.run(["ip", "-n", self._space(number), *command.split()], check=True, capture_output=True)

    def _number(self, host: str) -> int:
        with self._making:
            if host not in self._hosts:
                number = len(self._hosts)
                space, port = self._space(number), self._port(number)
                _ip(
                    f"netns add {space}",
                    f"link add {port} type veth peer name eth0 netns {space}",
                    f"link set {port} master {self.bridge} up",
                )
                self._in(number, f"addr add {self._net}.{_FIRST_POD + number}/24 dev eth0")
                self._in(number, "link set eth0 up")
                self._in(number, "link set lo up")
                self._hosts[host] = number
            return self._hosts[host]

    def _space(self, number: int) -> str:
        return f"{self.bridge}-{number}"

    def _port(self, number: int) -> str:
        return f"{self.bridge}p{number}"


def _enter(space: int) -> None:
    if _LIBC.setns(space, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns failed")

"""Hosts for clients: a network namespace for each, on one bridge with the brokers, so that a host can be cut off.

Laws:

* Needs Linux, root and iproute2; a thread that has entered a host opens its sockets there, and so do its children.
* What a host sends to a broker that it is cut off from is on the bridge, and reaches nobody: the capture has it, as one
  has that was taken in front of a firewall.
* What a host loses by chance, or on connections that are dropped, is lost between it and the bridge: the capture has
  what the broker sends, and nothing of what does not reach it.
* Leaving the block takes away all of it.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
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
_SHOT, _NEXT = 2, (1 << 32) - 1
"""What a filter does with a packet: lose it, or leave it to the next filter (TC_ACT_SHOT, TC_ACT_UNSPEC)."""
_RANDOM: Final = (1 << 32) - 0x1000 + 56
"""Where a program finds a random number (SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h)."""
_LOAD, _LOAD_HALF, _IS, _AT_LEAST, _RETURN = 0x20, 0x28, 0x15, 0x35, 0x06
"""Instructions of linux/bpf_common.h: BPF_LD+BPF_W+BPF_ABS, its 16-bit form, BPF_JEQ, BPF_JGE, BPF_RET."""
_SOURCE, _SOURCE_PORT, _TARGET, _TARGET_PORT = 26, 34, 30, 36
"""Of a TCP packet of IPv4 without options, from its Ethernet header on."""


def _ip(*commands: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True, capture_output=True)


def _shown(*command: str) -> str:
    return subprocess.run(["ip", *command], text=True, check=True, capture_output=True).stdout


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
        for space in re.findall(rf"^{self.bridge}-\d+", _shown("netns", "list"), re.M):
            _ip(f"netns del {space}")
        # A namespace ends some time after its last socket; its port would be there when the next hall wants one.
        for link in re.findall(rf"^\d+: ({self.bridge}(?:p\d+)?)[@:]", _shown("-o", "link", "show"), re.M):
            with suppress(subprocess.CalledProcessError):
                _ip(f"link del {link}")

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

    def lose(self, host: str, share: float) -> None:
        """Lose so many of the packets from and to a host, each by chance."""
        port = self._port(self._number(host))
        least = int(share * (1 << 32))
        program = [(_LOAD, 0, 0, _RANDOM), (_AT_LEAST, 1, 0, least), (_RETURN, 0, 0, _SHOT), (_RETURN, 0, 0, _NEXT)]
        _filter(port, {"ingress": [program], "egress": [program]})

    def drop(self, host: str, ports: Sequence[int]) -> None:
        """Lose what the connections of a host carry from and to these ports, as a NAT does that has lost its table."""
        number = self._number(host)
        address = int.from_bytes(map(int, f"{self._net}.{_FIRST_POD + number}".split(".")))
        sent = [_matching(_SOURCE, address, _SOURCE_PORT, port) for port in ports]
        received = [_matching(_TARGET, address, _TARGET_PORT, port) for port in ports]
        _filter(self._port(number), {"ingress": sent, "egress": received})

    def lose_no_more(self, host: str) -> None:
        """All passes again, after `lose` or `drop`."""
        _tc("qdisc", "del", "dev", self._port(self._number(host)), "clsact")

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


Program = Sequence[tuple[int, int, int, int]]
"""Of classic BPF: code, jumps if true and if false, operand."""


def _matching(at: int, address: int, port_at: int, port: int) -> Program:
    return [
        (_LOAD, 0, 0, at),
        (_IS, 0, 3, address),
        (_LOAD_HALF, 0, 0, port_at),
        (_IS, 0, 1, port),
        (_RETURN, 0, 0, _SHOT),
        (_RETURN, 0, 0, _NEXT),
    ]


def _filter(port: str, programs: Mapping[str, Sequence[Program]]) -> None:
    """Put a port's packets through programs; ``ingress`` is what comes from its host."""
    _tc("qdisc", "add", "dev", port, "clsact")
    for way, each in programs.items():
        for program in each:
            text = ",".join([str(len(program)), *(" ".join(map(str, instruction)) for instruction in program)])
            _tc("filter", "add", "dev", port, way, "bpf", "direct-action", "bytecode", text)


def _tc(*arguments: str) -> None:
    subprocess.run(["tc", *arguments], check=True, capture_output=True)

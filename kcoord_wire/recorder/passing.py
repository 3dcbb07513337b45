"""The frames of one direction of a connection, seen as their bytes pass.

Laws:

* Every byte is passed on, in order, at once; only a frame that is held back waits until it is whole.
* A frame that is whole in the data costs no copy unless it is kept.
* At most `RelayLimits.max_held` bytes of frames in progress are kept over all connections, held-back frames apart; of a
  frame beyond that, what was kept so far is recorded.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.codec.framing import frame
from kcoord_wire.kernel.peers import Peer, PeerLimits

if TYPE_CHECKING:
    from kcoord_wire.recorder.relay import Relay

_LIMITS: Final = PeerLimits(unread_ms=30_000)
_SIZE: Final = struct.Struct(">I")


class FramePasser(Peer):
    """What one peer sends: frames are seen here, and passed to the other peer.

    :cvar HEAD: bytes of a frame with which it is recognised, those of its size included
    :cvar LIMIT: size of a frame, at most
    :ivar in_step: the bytes are still frames
    :ivar held_back: the frame in progress is passed on only when it is whole
    :ivar time_ns: when the data came
    """

    __slots__ = (
        "_keep", "_kept", "_kept_size", "_left", "_size", "_start", "_wanted", "held_back", "in_step", "relay",
        "time_ns",
    )  # fmt: skip
    HEAD: int
    LIMIT: int
    SIDE: Any

    def __init__(self, relay: Relay) -> None:
        super().__init__(_LIMITS)
        self.relay = relay
        self.in_step = True
        self.held_back = False
        self.time_ns = 0
        self._start = b""  # of a frame, too short to recognise it
        self._left = 0  # remaining bytes of the frame in progress
        self._size = 0  # its bytes, without those of its size
        self._keep = 0  # how many of these to keep
        self._wanted = False  # it is recorded or rewritten
        self._kept: list[bytes] = []
        self._kept_size = 0

    def leave_step(self, why: str, start: bytes, passed: list[bytes]) -> bool:
        """Handle a `start` that is not one of a frame, behind what was `passed`; return whether to pass it all on."""
        raise NotImplementedError

    def begin(self, data: bytes, at: int, size: int) -> tuple[int, bool]:
        """Look at the start of a frame, and return how many of its bytes to keep and whether to hold it back.

        :param data: holds its first `HEAD` bytes at `at`, or all of it
        :param size: bytes of the frame, without those of its size
        """
        raise NotImplementedError

    def end(self, body: bytes, size: int) -> bytes | None:
        """Take a whole frame that was kept or held back; return what to pass on in its place, None for itself."""
        raise NotImplementedError

    def split(self, data: bytes) -> list[bytes] | None:
        """See the frames in `data`; return what to pass on now, None if the connection has ended."""
        passed: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                at = self._continue(data, at, passed)
            else:
                if not self._start:
                    at = self._pass_whole(data, at, passed)
                start = self._start + data[at : at + self.HEAD - len(self._start)]
                size = int.from_bytes(start[:4], "big")
                if len(start) >= 4 and size > self.LIMIT:
                    why = f"a frame of {size} bytes"
                    return [*passed, self._start + data[at:]] if self.leave_step(why, start, passed) else None
                if len(start) < 4 or len(start) < min(self.HEAD, 4 + size):
                    self._start = start
                    break
                at += self._begin(start[: 4 + size], size, passed)
            if not self._left:
                self._finish(passed)
        return passed

    def _begin(self, start: bytes, size: int, passed: list[bytes]) -> int:
        """Take the recognised start of a frame; return how many of its bytes are new."""
        new = len(start) - len(self._start)
        self._start = b""
        self._size, self._left = size, 4 + size - len(start)
        self._keep, self.held_back = self.begin(start, 0, size)
        self._wanted = self._keep > 0
        self.hold(start[4:])
        if not self.held_back:
            passed.append(start)
        return new

    def _continue(self, data: bytes, at: int, passed: list[bytes]) -> int:
        """Take bytes of the frame in progress; return where they end."""
        piece = data[at : at + self._left] if at or len(data) > self._left else data
        self._left -= len(piece)
        self.hold(piece)
        if not self.held_back:
            passed.append(piece)
        return at + len(piece)

    def _pass_whole(self, data: bytes, at: int, passed: list[bytes]) -> int:
        """Take the frames that are whole in `data`, from `at` on, which nearly all are; return where they end."""
        filled, begun, shortest = len(data), at, self.HEAD - 4
        longest = min(self.LIMIT, self.relay.context.limits.max_frame)
        while at + self.HEAD <= filled:
            size = _SIZE.unpack_from(data, at)[0]
            end = at + 4 + size
            if end > filled or not shortest <= size <= longest:
                break
            keep, held_back = self.begin(data, at, size)
            if held_back:
                if begun < at:
                    passed.append(data[begun:at])
                body = data[at + 4 : end]
                passed.append(self.end(body, size) or frame(body))
                begun = end
            elif keep:
                self.record(data[at + 4 : end], size)
            at = end
        if begun < at:
            passed.append(data[begun:at])
        return at

    def _finish(self, passed: list[bytes]) -> None:
        if self._wanted:
            body = b"".join(self._kept)
            instead = self.end(body, self._size)
            if self.held_back:
                passed.append(instead or frame(body))
        self.forget()

    def hold(self, piece: bytes) -> None:
        """Keep a piece of the frame in progress, as far as it is to be kept."""
        context = self.relay.context
        if self._kept_size < self._keep:
            if context.held + len(piece) > context.limits.max_held and not self.held_back:
                self._keep = self._kept_size  # only what was kept so far is recorded
                return
            piece = piece[: self._keep - self._kept_size]
            self._kept.append(piece)
            self._kept_size += len(piece)
            context.held += len(piece)

    def forget(self) -> None:
        """Give up what is kept of the frame in progress."""
        self.relay.context.held -= self._kept_size
        self._kept.clear()
        self._kept_size = self._keep = self._left = 0
        self.held_back = self._wanted = False

    def record(self, body: bytes, size: int) -> None:
        """Record a frame, or the beginning of one.

        :param size: of the whole frame
        """
        recording = self.relay.context.recording
        if recording is not None:
            recording.frame(self.relay.number, self.SIDE, body, self.time_ns, size)

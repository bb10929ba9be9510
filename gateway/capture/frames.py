"""Frames: how records lie in a journal, so that a cut or a flipped bit is noticed and never read as a record.

A frame is a header of three little-endian 32-bit numbers (length of the body, CRC-32 of the body, CRC-32 of the first
two) and the body: one CapturedCall in MessagePack. There is no search for a next frame behind a damaged one: bodies
hold what clients sent, and a client could plant a frame inside its request.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Literal

import msgspec

from gateway.capture.record import CapturedCall

_NUMBERS = struct.Struct("<II")
_HEADER = struct.Struct("<III")
HEADER_BYTES = _HEADER.size

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(CapturedCall).decode


@dataclass(frozen=True, slots=True)
class Split:
    """The frames at the beginning of some bytes, and what follows them."""

    bodies: list[memoryview]
    ends: list[int]
    """Where each frame ends."""
    rest: Literal["none", "incomplete", "corrupt"]
    """What stands behind the last frame; ``none``: nothing, or frames beyond the wanted number."""
    wanted: int = 0
    """Bytes that the damaged or incomplete frame takes by its header; 0: its header cannot be read."""

    @property
    def end(self) -> int:
        """Where the last whole frame ends."""
        return self.ends[-1] if self.ends else 0


def frame_parts(call: CapturedCall) -> tuple[bytes, bytes]:
    """Header and body of a frame. Raises TypeError or OverflowError for a record that MessagePack cannot hold."""
    body = _encode(call)
    length, checksum = len(body), zlib.crc32(body)
    return _HEADER.pack(length, checksum, zlib.crc32(_NUMBERS.pack(length, checksum))), body


def split_frames(data: bytes, most: int) -> Split:
    """The first frames of ``data``, at most ``most``, up to the first one that is incomplete or damaged."""
    view = memoryview(data)
    bodies: list[memoryview] = []
    ends: list[int] = []
    at = 0
    while len(bodies) < most and at < len(data):
        if len(data) - at < _HEADER.size:
            return Split(bodies, ends, "incomplete")
        length, checksum, check = _HEADER.unpack_from(data, at)
        if length == 0 or zlib.crc32(view[at : at + _NUMBERS.size]) != check:
            return Split(bodies, ends, "corrupt")
        body, end = at + _HEADER.size, at + _HEADER.size + length
        if end > len(data):
            return Split(bodies, ends, "incomplete", wanted=end - at)
        if zlib.crc32(view[body:end]) != checksum:
            return Split(bodies, ends, "corrupt", wanted=end - at)
        bodies.append(view[body:end])
        ends.append(end)
        at = end
    return Split(bodies, ends, "none")


def decode_call(body: memoryview) -> CapturedCall:
    """The record of one frame. Raises msgspec.DecodeError for one that this version cannot read."""
    return _decode(body)

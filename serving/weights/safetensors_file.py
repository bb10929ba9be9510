"""Reads safetensors files without torch: headers for shapes, and a check that all numbers are finite.

Format: eight bytes of header length, a JSON header, then the tensors' bytes
(https://github.com/huggingface/safetensors, "Format").
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.errors import CorruptArtefact

_MAX_HEADER_BYTES = 100_000_000
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# All bits of the exponent set means infinity or NaN, in every IEEE-like format.
_EXPONENT = {"F64": (np.uint64, 0x7FF0 << 48), "F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00)}
_EXPONENT["BF16"] = (np.uint16, 0x7F80)


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: where its bytes are, and their meaning."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Tensor name → entry, with absolute byte offsets. Raises CorruptArtefact for a malformed or cut file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
                raise CorruptArtefact(f"{path}: the header says {length} bytes, the file has {size}")
            header = json.loads(stream.read(length))
        entries = {name: _entry(fields, 8 + length) for name, fields in header.items() if name != "__metadata__"}
    except OSError as error:
        raise CorruptArtefact(f"{path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptArtefact(f"{path}: malformed safetensors header: {error}") from error
    for name, entry in entries.items():
        if entry.end > size or entry.start > entry.end:
            raise CorruptArtefact(f"{path}: '{name}' ends at byte {entry.end}, the file has {size}")
        expected = _BYTES.get(entry.dtype, 0) * int(np.prod(entry.shape, dtype=np.int64))
        if entry.dtype in _BYTES and entry.end - entry.start != expected:
            raise CorruptArtefact(f"{path}: '{name}' has {entry.end - entry.start} bytes, not {expected}")
    return entries


def first_not_finite(path: Path) -> str | None:
    """The name of a tensor with an infinity or NaN, or None. Unknown dtypes are not looked into."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    for name, entry in read_header(path).items():
        if entry.dtype not in _EXPONENT:
            continue
        word, mask = _EXPONENT[entry.dtype]
        bits = np.frombuffer(data[entry.start : entry.end].tobytes(), dtype=word) & word(mask)
        if bool((bits == word(mask)).any()):
            return name
    return None


def _entry(fields: dict[str, object], data_start: int) -> TensorEntry:
    shape, offsets = fields["shape"], fields["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list):
        raise TypeError("shape and data_offsets are lists")
    start, end = (int(offset) for offset in offsets)
    return TensorEntry(
        dtype=str(fields["dtype"]),
        shape=tuple(int(dimension) for dimension in shape),
        start=data_start + start,
        end=data_start + end,
    )

"""The most bytes of text that one token of a Base can stand for: with it a prompt's length has a safe lower bound.

Only for tokenizers that take every byte of a text into some token (but for those that ``core.token_bound`` leaves
out): byte-level BPE, and BPE with byte fallback. What
drops, joins or squeezes text on its way (most normalizers, unknown tokens, special tokens that swallow spaces) has no
such bound. Layout: Hugging Face tokenizers, ``tokenizer.json`` version 1.0.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.token_bound import DROPPABLE

_NFC_FACTOR = 3
"""Composing (NFC) makes at most three bytes of UTF-8 into one: three Hangul letters into one syllable."""
_KEEPING = frozenset({"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"})
"""Pre-tokenizers that only cut."""


def longest_token_bytes(folder: Path) -> int | None:
    """The bound for the tokenizer in a model's folder; None: it promises none, or cannot be read."""
    try:
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return token_bytes_of(tokenizer) if isinstance(tokenizer, dict) else None


def token_bytes_of(tokenizer: Mapping[str, Any]) -> int | None:
    """The bound for a parsed ``tokenizer.json``."""
    model, added = tokenizer.get("model") or {}, tokenizer.get("added_tokens") or []
    factor = _shrinking(tokenizer.get("normalizer"))
    if model.get("type") != "BPE" or factor is None or tokenizer.get("truncation") is not None:
        return None
    cutters = list(_parts(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    if any(one.get("type") not in _KEEPING or one.get("behavior") == "Removed" for one in cutters):
        return None
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None
    vocabulary = model.get("vocab") or {}
    byte_level = any(one.get("type") == "ByteLevel" for one in cutters)
    if byte_level:
        # Each character of a byte-level token stands for one byte.
        needed = {character for byte, character in byte_characters().items() if byte not in DROPPABLE}
        covered, lengths = needed <= vocabulary.keys(), [len(token) for token in vocabulary]
    else:
        covered = bool(model.get("byte_fallback")) and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
        lengths = [len(token.encode()) for token in vocabulary]
    if not covered:
        return None
    return factor * max([*lengths, *(len(str(token["content"]).encode()) for token in added)], default=1)


def byte_characters() -> dict[int, str]:
    """The characters by which byte-level tokenizers write the 256 bytes (GPT-2's ``bytes_to_unicode``)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + at) for at, byte in enumerate(others)}


def _shrinking(normalizer: Any) -> int | None:
    """By how much a normalizer can shorten a text at most; None: not known."""
    factor = 1
    for one in _parts(normalizer, "normalizers"):
        kind = one.get("type")
        if kind == "NFC":
            factor *= _NFC_FACTOR
        elif kind == "Replace":
            taken = (one.get("pattern") or {}).get("String")
            if not isinstance(taken, str) or len(str(one.get("content", "")).encode()) < len(taken.encode()):
                return None
        elif kind not in ("Prepend", "ByteLevel"):
            return None
    return factor


def _parts(step: Any, several: str) -> Iterator[Mapping[str, Any]]:
    if not isinstance(step, dict):
        return
    if step.get("type") == "Sequence":
        for one in step.get(several) or ():
            yield from _parts(one, several)
    else:
        yield step

"""Bytes of a text that every tokenizer with a bound (``Base.token_bytes``) takes into some token.

Vocabularies of byte-level tokenizers lack some bytes that texts hardly ever have, and drop them without a word.
"""

DROPPABLE = bytes(sorted((set(range(0x20)) - set(b"\t\n\r")) | {0x7F, 0xC0, 0xC1} | set(range(0xF1, 0x100))))
"""Control characters, and bytes that no text in UTF-8 has or that begin unassigned code points alone."""


def counted_bytes(text: str) -> int:
    """How many bytes of UTF-8 a text has, those aside that a tokenizer may drop."""
    return len(text.encode(errors="ignore").translate(None, DROPPABLE))


def least_tokens(size: int, token_bytes: int) -> int:
    """Tokens that ``size`` counted bytes have at least."""
    return -(-size // token_bytes)

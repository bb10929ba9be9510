"""The longest token of a tokenizer: a bound where there is one, and none where text can get lost."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.token_bound import DROPPABLE, counted_bytes, least_tokens
from serving.weights.token_bytes import byte_characters, longest_token_bytes, token_bytes_of

LETTERS = {character: byte for byte, character in byte_characters().items()}
BYTE_LEVEL = {
    "truncation": None,
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": LETTERS | {"Ġhello": 300}},
    "added_tokens": [{"content": "<|end|>", "lstrip": False, "rstrip": False}],
}
FALLBACK = BYTE_LEVEL | {
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    },
    "pre_tokenizer": None,
    "model": {
        "type": "BPE",
        "byte_fallback": True,
        "vocab": {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁▁hello": 300},
    },
}


def test_the_longest_token_is_the_bound():
    """Byte-level tokens count their characters, others their bytes, and special tokens count too."""
    assert token_bytes_of(BYTE_LEVEL) == len("<|end|>")
    assert token_bytes_of(BYTE_LEVEL | {"added_tokens": []}) == len(" hello")
    assert token_bytes_of(FALLBACK) == len("▁▁hello".encode())
    assert token_bytes_of(BYTE_LEVEL | {"normalizer": {"type": "NFC"}}) == 3 * len("<|end|>")


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Removed"}]}},
        {"added_tokens": [{"content": "<mask>", "lstrip": True}]},
        {"model": {"type": "WordPiece", "vocab": {}}},
        {"model": {"type": "BPE", "vocab": {"a": 0}}},
        {"truncation": {"max_length": 512}},
    ],
)
def test_whatever_can_lose_text_has_no_bound(change):
    """Nothing is promised where a token may stand for any amount of text."""
    assert token_bytes_of(BYTE_LEVEL | change) is None


def test_bytes_that_no_text_needs_may_be_missing(tmp_path):
    """Vocabularies leave out control characters and impossible bytes; a folder without a tokenizer has no bound."""
    kept = {character: byte for character, byte in LETTERS.items() if byte not in DROPPABLE}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(BYTE_LEVEL | {"model": {"type": "BPE", "vocab": kept}}), encoding="utf-8"
    )
    assert longest_token_bytes(tmp_path) == len("<|end|>")
    assert longest_token_bytes(tmp_path / "nowhere") is None
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    assert longest_token_bytes(tmp_path) is None


@given(st.text(max_size=60), st.integers(1, 9), st.data())
def test_no_way_to_cut_a_text_has_fewer_tokens_than_the_bound(text, longest, data):
    """However the bytes that are counted fall into tokens of at most ``longest`` bytes, there are enough of them."""
    left, tokens = counted_bytes(text), 0
    while left:
        left -= data.draw(st.integers(1, min(longest, left)))
        tokens += 1
    assert tokens >= least_tokens(counted_bytes(text), longest)

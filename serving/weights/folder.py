"""Checksums of folders: what a Checkpoint and a Base are identified by."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from core.errors import CorruptArtefact

_BLOCK = 1 << 20
_BASE_FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
)


def folder_checksum(path: Path) -> str:
    """sha256 over all files of a folder: relative name, size and bytes, in name order.

    Raises CorruptArtefact when the folder is missing, empty or unreadable.
    """
    return _digest(path, (file for file in path.rglob("*") if file.is_file()))


def base_fingerprint(path: Path) -> str:
    """sha256 over a Base's configuration, weights and tokenizer; other files may change freely.

    Raises CorruptArtefact when the folder has no weights or cannot be read.
    """
    if not any(path.glob("*.safetensors")):
        raise CorruptArtefact(f"{path} has no *.safetensors file", hint="is it a Hugging Face folder?")
    return _digest(path, {file for pattern in _BASE_FILES for file in path.glob(pattern) if file.is_file()})


def _digest(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    try:
        named = sorted((file.relative_to(root).as_posix(), file) for file in files)
        if not named:
            raise CorruptArtefact(f"{root} is missing or empty")
        for name, file in named:
            digest.update(f"{name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
    except OSError as error:
        raise CorruptArtefact(f"{root} cannot be read: {error}") from error
    return digest.hexdigest()

"""Checks a full-weight Hugging Face folder before an engine is asked to load it in place of the Base's weights.

After a load that failed half-way an engine's weights are undefined, so whatever can be known from the files is
looked at first: an engine's refusal is slower, says less, and costs a second load.
"""

import hashlib
from pathlib import Path

from core.errors import AdapterRejected, CorruptArtefact
from serving.weights.safetensors_file import TensorEntry, first_not_finite, read_header

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json")
_HALVES = frozenset({"F16", "BF16"})


def tensors_of(path: Path) -> dict[str, TensorEntry]:
    """Tensor name → entry over all safetensors files of a folder. Raises CorruptArtefact when there are none."""
    entries: dict[str, TensorEntry] = {}
    for file in sorted(path.glob("*.safetensors")):
        entries |= read_header(file)
    if not entries:
        raise CorruptArtefact(f"{path} has no weights")
    return entries


def tokenizer_hash(path: Path) -> str:
    """sha256 over a folder's vocabulary and merges: what decides which ids a text has.

    Raises CorruptArtefact for a folder without a tokenizer.
    """
    digest = hashlib.sha256()
    found = False
    for name in _TOKENIZER_FILES:
        file = path / name
        if file.is_file():
            found = True
            digest.update(f"{name}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    if not found:
        raise CorruptArtefact(f"{path} has no tokenizer", hint="write the Base's tokenizer files into it")
    return digest.hexdigest()


def check_same_form(path: Path, present: Path) -> None:
    """Whether ``path`` holds tensors of the names and shapes of those in ``present``. AdapterRejected: it does not.

    Where ``present`` is not on this machine nothing is compared.
    """
    if not present.is_dir():
        return
    try:
        tensors, expected = tensors_of(path), tensors_of(present)
    except CorruptArtefact as error:
        raise AdapterRejected(error.message) from error
    wrong = sorted(
        name
        for name in tensors.keys() | expected.keys()
        if name not in tensors or name not in expected or tensors[name].shape != expected[name].shape
    )
    if wrong:
        raise AdapterRejected(f"{path} is of another model: {len(wrong)} tensors differ, such as '{wrong[0]}'")


def check_full_folder(path: Path, *, base_path: Path, engine_dtype: str | None = None) -> None:
    """Whether the weights in ``path`` can stand in place of those in ``base_path``. Blocking: reads every byte.

    ``engine_dtype``: what engines run in. Those of ``float32`` take a 16-bit Base's tensors in float32 as well, and
    lose nothing of them.

    Raises CorruptArtefact for files that are missing or malformed; AdapterRejected for a folder that is whole
    but of another model: another tokenizer, other tensors, other shapes or dtypes, numbers that are not finite.
    """
    if not (path / "config.json").is_file():
        raise CorruptArtefact(f"{path} has no config.json")
    if tokenizer_hash(path) != tokenizer_hash(base_path):
        raise AdapterRejected("its tokenizer is not the Base's: the same text would have other token ids")
    tensors, base = tensors_of(path), tensors_of(base_path)
    if missing := sorted(base.keys() - tensors.keys()):
        raise AdapterRejected(f"it lacks {len(missing)} of the Base's tensors, such as '{missing[0]}'")
    if unknown := sorted(tensors.keys() - base.keys()):
        raise AdapterRejected(f"the Base has no tensor '{unknown[0]}'")
    for name, entry in tensors.items():
        expected = base[name]
        if entry.shape != expected.shape:
            raise AdapterRejected(f"'{name}' has shape {entry.shape}, the Base's has {expected.shape}")
        if entry.dtype != expected.dtype and not _widened(entry.dtype, expected.dtype, engine_dtype):
            raise AdapterRejected(f"'{name}' has dtype {entry.dtype}, the Base's has {expected.dtype}")
    for file in sorted(path.glob("*.safetensors")):
        broken = first_not_finite(file)
        if broken is not None:
            raise AdapterRejected(f"'{broken}' holds numbers that are not finite")


def _widened(dtype: str, base_dtype: str, engine_dtype: str | None) -> bool:
    return engine_dtype == "float32" and dtype == "F32" and base_dtype in _HALVES

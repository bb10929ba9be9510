"""Signatures of Checkpoints: what holds, what does not, and where the key is kept."""

import base64
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.errors import AdapterRejected, ConfigurationError
from core.policy import Base, Checkpoint
from serving.hotswap import whole_artefact
from serving.weights.folder import folder_checksum
from serving.weights.signing import KEY_FILE, signer_of, verifier_of
from tests import nouns

KEY = base64.b64encode(b"k" * 32).decode()
BASE = Base(name="smol", path="/b", fingerprint="f" * 64)


def signed(config, checkpoint: Checkpoint) -> Checkpoint:
    signer = signer_of(config)
    assert signer is not None
    return signer.sign(checkpoint)


def test_nothing_is_signed_unless_asked_for(make_config) -> None:
    """Off by default, and then nothing is verified."""
    assert signer_of(make_config()) is None
    assert verifier_of(make_config()) is None


def test_the_key_is_made_once_for_its_owner_alone(make_config) -> None:
    """The file has mode 0600, and a second process signs with the same key."""
    config = make_config({"registry.signing": True})
    first = signed(config, nouns.checkpoint())
    assert stat.S_IMODE((config.data_dir / KEY_FILE).stat().st_mode) == 0o600
    assert signed(config, nouns.checkpoint()).signed_by == first.signed_by
    (config.data_dir / KEY_FILE).chmod(0o640)
    with pytest.raises(ConfigurationError, match="read by others"):
        signer_of(config)


def test_what_a_crash_left_behind_is_in_nobodys_way(make_config) -> None:
    """A draft of the key named after this process is no obstacle, and threads that come at once use one key."""
    config = make_config({"registry.signing": True})
    config.data_dir.mkdir(parents=True, exist_ok=True)
    (config.data_dir / f"{KEY_FILE}.{os.getpid()}").write_bytes(b"")
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: signer_of(config).public, range(16)))
    assert len(set(made)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"checksum": "0" * 64},
        {"policy": "other"},
        {"base_fingerprint": "0" * 64},
        {"kind": "full"},
        {"id": "ckpt_other"},
        {"signature": "AAAA"},
        {"signature": "no base64!"},
        {"signature": None},
        {"signed_by": "0" * 16},
    ],
)
def test_a_changed_checkpoint_is_rejected(make_config, changes: dict) -> None:
    """Every field that says which weights these are is covered, and so is the key."""
    config = make_config({"registry.signing": True, "registry.signing_key": KEY})
    verifier = verifier_of(config)
    assert verifier is not None
    checkpoint = signed(config, nouns.checkpoint())
    verifier.check(Checkpoint.model_validate_json(checkpoint.model_dump_json()))
    with pytest.raises(AdapterRejected):
        verifier.check(checkpoint.model_copy(update=changes))


def test_another_key_is_good_once_it_is_trusted(make_config) -> None:
    """A learner's own key can differ from the fleet's."""
    learner = make_config({"registry.signing": True, "registry.signing_key": KEY})
    public = base64.b64encode(signer_of(learner).public).decode()
    fleet = {"registry.signing": True, "registry.signing_key": base64.b64encode(b"f" * 32).decode()}
    checkpoint = signed(learner, nouns.checkpoint())
    with pytest.raises(AdapterRejected, match="not trusted"):
        verifier_of(make_config(fleet)).check(checkpoint)
    verifier_of(make_config(fleet | {"registry.trusted_keys": [public]})).check(checkpoint)


def test_a_key_that_is_none_is_refused(make_config) -> None:
    """The message names the field and not the value."""
    with pytest.raises(ConfigurationError, match=r"registry\.signing_key is not"):
        signer_of(make_config({"registry.signing": True, "registry.signing_key": "short"}))


def test_an_engine_is_given_only_what_is_signed(make_config, tmp_path: Path) -> None:
    """Where signing is on, a version without a good signature is rejected before it is loaded."""
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    folder = tmp_path / "adapter"
    checkpoint = nouns.checkpoint(path=str(folder), checksum=folder_checksum(folder))
    config = make_config({"registry.signing": True})
    verifier = verifier_of(config)
    with pytest.raises(AdapterRejected, match="not signed"), whole_artefact(checkpoint, base=BASE, verifier=verifier):
        pass
    with whole_artefact(signed(config, checkpoint), base=BASE, verifier=verifier) as path:
        assert path == folder
    with whole_artefact(checkpoint, base=BASE) as path:
        assert path == folder

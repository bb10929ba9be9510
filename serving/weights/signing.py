"""Signs Checkpoints and verifies their signatures: Ed25519 (RFC 8032) of the ``cryptography`` library."""

import base64
import binascii
import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from core.config.schema import HoneConfig
from core.errors import AdapterRejected, ConfigurationError
from core.noun import Noun
from core.policy import Checkpoint

KEY_FILE = "signing.key"
_KEY_BYTES = 32


class Signer:
    """Holds the private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    def sign(self, checkpoint: Checkpoint) -> Checkpoint:
        """The Checkpoint with its signature."""
        signature = base64.b64encode(self._key.sign(signed_bytes(checkpoint))).decode()
        return checkpoint.model_copy(update={"signature": signature, "signed_by": fingerprint(self.public)})


class Verifier:
    """Holds the public keys that are trusted."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = {fingerprint(key): Ed25519PublicKey.from_public_bytes(key) for key in keys}

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise AdapterRejected unless a trusted key signed exactly this Checkpoint."""
        if checkpoint.signature is None or checkpoint.signed_by is None:
            raise AdapterRejected("its checkpoint is not signed", hint="sign it: hone versions sign POLICY@VERSION")
        key = self._keys.get(checkpoint.signed_by)
        if key is None:
            raise AdapterRejected(
                f"its checkpoint is signed by {checkpoint.signed_by}, which is not trusted",
                hint="add the public key to registry.trusted_keys",
            )
        try:
            key.verify(base64.b64decode(checkpoint.signature, validate=True), signed_bytes(checkpoint))
        except (InvalidSignature, binascii.Error) as error:
            raise AdapterRejected("the signature of its checkpoint does not hold") from error


def signed_bytes(checkpoint: Checkpoint) -> bytes:
    """What is signed: everything that says which weights these are, of what, and how an engine tells them."""
    said = {
        "id": checkpoint.id,
        "policy": checkpoint.policy,
        "kind": checkpoint.kind,
        "checksum": checkpoint.checksum,
        "base": checkpoint.base_fingerprint,
        "probe": _digest(checkpoint.probe),
        "provenance": _digest(checkpoint.provenance),
    }
    return b"hone checkpoint 1\n" + json.dumps(said, sort_keys=True, separators=(",", ":")).encode()


def _digest(noun: Noun) -> str:
    # Without defaults: a field that a later Hone adds must not break what was signed before.
    return hashlib.sha256(noun.model_dump_json(exclude_defaults=True).encode()).hexdigest()


def fingerprint(public_key: bytes) -> str:
    """The first 16 hex digits of the key's sha256."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def signer_of(config: HoneConfig) -> Signer | None:
    """The Signer, None where signing is off. Raises ConfigurationError for a key that is none or that others read."""
    if not config.registry.signing:
        return None
    configured = config.registry.signing_key.get_secret_value()
    raw = _decoded(configured, "registry.signing_key") if configured else _kept_key(config.data_dir.expanduser())
    return Signer(Ed25519PrivateKey.from_private_bytes(raw))


def verifier_of(config: HoneConfig) -> Verifier | None:
    """The Verifier, None where signing is off. Raises as ``signer_of``."""
    signer = signer_of(config)
    if signer is None:
        return None
    return Verifier(
        [signer.public, *(_decoded(key, "registry.trusted_keys") for key in config.registry.trusted_keys)]
    )


def _decoded(text: str, name: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error:
        raw = b""
    if len(raw) != _KEY_BYTES:
        raise ConfigurationError(f"{name} is not 32 bytes in base64")
    return raw


def _kept_key(folder: Path) -> bytes:
    path = folder / KEY_FILE
    try:
        if not path.exists():
            _make_key(path)
        if path.stat().st_mode & 0o077:
            raise ConfigurationError(f"{path} can be read by others", hint=f"chmod 600 {path}")
        return _decoded(path.read_text().strip(), str(path))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be used: {error}") from error


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(base64.b64encode(Ed25519PrivateKey.generate().private_bytes_raw()) + b"\n")
        opened.flush()
        os.fsync(opened.fileno())
    try:
        # Of two processes that come at once one makes the key; a link never replaces what is there.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()

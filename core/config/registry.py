"""Configuration of the registry: signatures of checkpoints, and which folders are kept."""

from pydantic import Field, SecretStr

from core.config.section import Section


class RegistrySection(Section):
    """Versions, their signatures and their folders."""

    signing: bool = False
    """Checkpoints are signed when they are made, and one without a good signature is not loaded."""
    signing_key: SecretStr = SecretStr("")
    """Ed25519 private key, 32 bytes in base64; empty: ``signing.key`` under ``data_dir``, made at first use."""
    trusted_keys: tuple[str, ...] = ()
    """Further Ed25519 public keys, 32 bytes in base64, whose signatures are good too."""
    keep_versions: int = Field(default=20, ge=0)
    """``hone versions prune`` leaves the newest this many versions of a Policy their folders."""
    keep_days: float = Field(default=7.0, ge=0)
    """It leaves those their folders, too, that are not older than this."""

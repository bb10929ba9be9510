"""Where a launched engine finds its draft model: a link of its own that points at a Drafter's folder.

A Drafter that is replaced while the engine runs must not change the engine's command line, by which the fleet that
follows knows it as its own; and an engine that is started again must find the Drafter that it had. So the command
names the link, and what the link points at is the record of what the engine drafts with.
"""

from pathlib import Path

from core.config.schema import HoneConfig
from core.errors import StoreError
from core.variant import Speculation

WITH_FOLDER = ("draft_model", "eagle3")
"""Methods whose draft tokens come from a folder of weights."""


def drafter_link(config: HoneConfig, port: int) -> Path:
    """The link of the engine that listens on ``port``."""
    return config.data_dir.expanduser().absolute() / "drafters" / f"of-engine-{port}"


def draft_folder(config: HoneConfig, speculation: Speculation, port: int) -> str:
    """What the command line of an engine names as its draft model; empty: there is none yet, or none is needed.

    A configured name that is no folder here, such as a hub id, is given as it stands.
    """
    if speculation.method not in WITH_FOLDER:
        return ""
    configured = config.fleet.draft_model
    if configured and not Path(configured).expanduser().is_dir():
        return configured
    link = drafter_link(config, port)
    return str(link) if configured or link.is_symlink() else ""


def linked_folder(link: Path) -> Path | None:
    """What the link points at; None where there is no link."""
    try:
        return link.readlink()
    except OSError:
        return None


def point(link: Path, folder: Path) -> None:
    """Make ``link`` point at ``folder``, in one step. Raises StoreError."""
    draft = link.with_name(f".{link.name}.new")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        draft.symlink_to(folder)
        draft.replace(link)
    except OSError as error:
        raise StoreError(f"{link} cannot be pointed at {folder}: {error}") from error


def unlink(link: Path) -> None:
    """Take the link away: the engine starts without a draft model. Raises StoreError."""
    try:
        link.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{link} cannot be removed: {error}") from error

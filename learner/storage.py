"""Folders that are there completely or not at all, and disk errors in Hone's words."""

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.errors import HoneError, StoreError, StoreFull
from core.ids import new_id

_LITTLE_BYTES = 1 << 20
_DRAFT = ".draft-"


@contextmanager
def storage_errors(doing: str, folder: Path) -> Iterator[None]:
    """Attribute what fails while writing below ``folder`` to StoreFull or StoreError.

    Some writers (torch's, safetensors') report a full disk without an errno: then the free space decides.
    """
    try:
        yield
    except HoneError:
        raise
    except Exception as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or _is_full(folder, str(error)):
            raise StoreFull(f"{doing}: no room is left under {folder}", hint="free space, then resume") from error
        raise StoreError(f"{doing}: {type(error).__name__}: {error}") from error


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``target`` when the block ends well, and vanishes when it does not.

    Everything in it is on disk before the name appears. ``target`` must not exist yet.
    """
    draft = _beside(target)
    with storage_errors(f"writing {target.name}", target.parent):
        draft.mkdir(parents=True)
        try:
            yield draft
            _flush(draft)
            draft.rename(target)
            _flush_entry(target.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise


def remove_folder(target: Path) -> None:
    """Remove ``target``, if it is there: its name is gone before its files are."""
    draft = _beside(target)
    try:
        target.rename(draft)
    except FileNotFoundError:
        return
    shutil.rmtree(draft, ignore_errors=True)


def remove_drafts(folder: Path, *, older_than_seconds: float = 0.0) -> None:
    """Remove what processes that were killed left of ``new_folder`` and ``remove_folder`` in ``folder``.

    With ``older_than_seconds`` what others may be writing now stays.
    """
    for path in folder.glob(f".*{_DRAFT}*"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime >= older_than_seconds:
                shutil.rmtree(path, ignore_errors=True)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}{_DRAFT}{new_id('tmp')}")


def _is_full(folder: Path, message: str) -> bool:
    if "No space left" in message:
        return True
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free < _LITTLE_BYTES


def _flush(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        _flush_entry(path)
    _flush_entry(folder)


def _flush_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The service's folder for boxes on the host: made at start, removed at stop or by the next start."""

import asyncio
import os
import subprocess
import tempfile
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_PREFIX = "hone-sandbox-"


def make_scratch() -> Path:
    """A fresh folder that boxes can pass through and not list; folders of dead services are removed first."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        ours = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
        if ours and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _remove(folder)
    scratch = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    scratch.chmod(0o711)
    return scratch


def make_box_folder(scratch: Path, number: int) -> Path:
    """The folder of one box, with its empty ``readonly`` part."""
    folder = scratch / f"box-{number}"
    readonly = folder / "readonly"
    readonly.mkdir(parents=True)
    folder.chmod(0o711)
    readonly.chmod(0o755)
    return folder


async def remove_tree(folder: Path) -> None:
    """Remove a folder and whatever code has put there, without holding up the event loop."""
    await asyncio.to_thread(_remove, folder)


def _remove(folder: Path) -> None:
    # rm and not shutil: code can nest folders deeper than Python's recursion limit.
    done = subprocess.run(
        ["rm", "-rf", "--", str(folder)], env={"PATH": "/usr/bin:/bin"}, check=False, capture_output=True
    )
    if done.returncode != 0:
        log.warning("folder_left", folder=str(folder), error=done.stderr.decode(errors="replace")[-200:])

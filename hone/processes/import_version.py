"""Imports a folder as a PolicyVersion, in its own process: the learner's libraries take seconds to import."""

import asyncio
import sys
from pathlib import Path

from core.config.schema import HoneConfig
from core.errors import HoneError
from core.policy import PolicyVersion
from hone.local_audit import local_record
from hone.logs import configure_logs
from hone.opened_store import opened_store
from hone.output import complain, console
from hone.settings import load_settings
from learner.import_version import import_version


async def bring_in(config: HoneConfig, folder: Path, policy: str) -> PolicyVersion:
    """Import ``folder`` as the next version of ``policy``. Raises as ``import_version``."""
    async with opened_store(config) as store:
        version = await import_version(config, store, folder=folder, policy=policy)
        async with store.transaction() as work:
            await work.audit.add(local_record("version.import", version.label, {"folder": str(folder)}))
    return version


def main() -> None:
    """Entry point of ``python -m hone.processes.import_version FOLDER POLICY``."""
    folder, policy = sys.argv[1:]
    config = load_settings()
    configure_logs(config.log, process="import")
    try:
        version = asyncio.run(bring_in(config, Path(folder).expanduser(), policy))
    except HoneError as error:
        complain(error)
        sys.exit(1)
    console().print(f"{version.label} imported: 'hone policies show {policy}' follows it", markup=False)


if __name__ == "__main__":
    main()

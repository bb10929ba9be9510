"""Merges a LoRA version into full weights, in its own process: the learner's libraries take seconds to import."""

import asyncio
import sys

from core.config.schema import HoneConfig
from core.errors import HoneError
from core.policy import PolicyVersion
from core.variant import parse_model_name
from hone.logs import configure_logs
from hone.opened_store import opened_store
from hone.output import complain, console
from hone.settings import load_settings
from learner.merge import merge_version


async def merge(config: HoneConfig, source: str, into: str) -> PolicyVersion:
    """Merge ``source`` (``coder@3``) into the next version of Policy ``into``. Raises as ``merge_version``."""
    name = parse_model_name(source)
    async with opened_store(config) as store:
        return await merge_version(config, store, policy=name.name, version=name.version or 0, into=into)


def main() -> None:
    """Entry point of ``python -m hone.processes.merge POLICY@VERSION NAME``."""
    source, into = sys.argv[1:]
    config = load_settings()
    configure_logs(config.log, process="merge")
    try:
        version = asyncio.run(merge(config, source, into))
    except HoneError as error:
        complain(error)
        sys.exit(1)
    console().print(f"{version.label} has the full weights of {source}; 'hone policies show {into}' follows it")


if __name__ == "__main__":
    main()

"""Starts SGLang as the fleet would and runs the engine contracts against it; for a GPU, or SGLang's CPU engine.

    python -m bench.gpu.sglang_contract --python ENV/bin/python --base FOLDER --adapters A B --weights W --wrong X

``--base``: a Hugging Face folder; ``--adapters``: two PEFT folders that fit it; ``--weights``: other full weights
that fit it; ``--wrong``: some that do not. The suites are those of ``tests/contract``, through
``tests/e2e/sglang_contract.py``. ``--device cpu`` runs it without a GPU; SGLang 0.5.23 has no LoRA there, so leave
``--adapters`` out. The exit status is pytest's.
"""

import argparse
import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from core.config.schema import HoneConfig
from core.policy import Base
from core.variant import Speculation
from serving.engines.sglang import SglangEngine
from serving.launch_sglang import SglangLaunch
from serving.launcher import EngineProcess
from serving.ports import free_port

SUITE = "tests/e2e/sglang_contract.py"


def folder(text: str) -> str:
    """A folder's absolute name, as the engine needs it."""
    return str(Path(text).resolve(strict=True))


def arguments() -> argparse.Namespace:
    """What is served, and with what."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="interpreter of the environment that holds SGLang")
    parser.add_argument("--base", type=folder, required=True)
    parser.add_argument("--adapters", type=folder, nargs=2, help="without: no LoRA, and none of its tests")
    parser.add_argument("--weights", type=folder, required=True)
    parser.add_argument("--wrong", type=folder, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--ngram", type=int, default=0, help="draft tokens of n-gram speculation; 0: none")
    parser.add_argument("--log", default="sglang.log")
    return parser.parse_args()


async def run(given: argparse.Namespace) -> int:
    """Start the engine, run the suites, end the engine."""
    sections: dict[str, dict[str, Any]] = {
        "engine": {"kind": "sglang", "python": given.python, "dtype": given.dtype, "max_model_len": 1024},
        "fleet": {"variants": ["standard"]},
    }
    if not given.adapters:
        sections["fleet"]["full_weights_policy"] = "whole"
    sections["engine"] |= {"max_num_seqs": 16, "start_timeout_seconds": 600}
    base = Base(name="base", path=given.base, fingerprint="-")
    launch = SglangLaunch(
        config=HoneConfig.model_validate(sections),
        base=base,
        build=given.device,
        port=free_port("127.0.0.1"),
        speculation=Speculation(method="ngram", tokens=given.ngram) if given.ngram else None,
    )
    process, engine = EngineProcess.of_launch(launch, Path(given.log)), SglangEngine(launch.url)
    await process.start()
    try:
        await process.wait_ready(engine, timeout_seconds=600, progress=lambda text: print(text, flush=True))
        environment = os.environ | {
            "SGLANG_URL": launch.url,
            "SGLANG_ADAPTERS": os.pathsep.join(given.adapters or (given.base, given.base)),
            "SGLANG_WEIGHTS": os.pathsep.join((given.base, given.weights)),
            "SGLANG_WRONG": given.wrong,
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", SUITE]
        if not given.adapters:
            command += ["-k", "not adapter and not loaded_once and not unloading and not listed_first"]
        return await asyncio.to_thread(lambda: subprocess.run(command, env=environment, check=False).returncode)
    finally:
        await engine.close()
        await process.stop()


def main() -> None:
    """Entry point."""
    sys.exit(asyncio.run(run(arguments())))


if __name__ == "__main__":
    main()

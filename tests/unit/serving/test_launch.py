"""The command line and environment of engines, and their processes."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from core.config.load import load_config
from core.errors import MachineError
from core.policy import Base
from core.variant import Variant
from serving.engines.vllm import VllmEngine
from serving.launch import Launch, find_build, speculation_of
from serving.launch_sglang import SglangLaunch
from serving.launcher import EngineProcess, end_leftover
from serving.ports import check_port, free_port

BASE = Base(name="smol", path="/models/smol", fingerprint="f")
SERVER = """
import http.server, sys
handler = http.server.SimpleHTTPRequestHandler
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()
"""


def launch(variant: Variant = Variant.STANDARD, build="cpu", overrides=None, **fields) -> Launch:
    config = load_config(environment={}, overrides=overrides or {})
    return Launch(
        config=config, base=BASE, build=build, port=8410, speculation=speculation_of(config, variant), **fields
    )


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_a_cpu_engine_is_started_as_measured():
    """The command names the Base, allows run-time LoRA and runs eagerly on a CPU."""
    command = launch().command()
    assert command[0] == sys.executable
    assert (option(command, "--model"), option(command, "--served-model-name")) == ("/models/smol", "smol")
    assert {"--enable-lora", "--enforce-eager"} <= set(command)
    assert "--gpu-memory-utilization" not in command and "--speculative-config" not in command


def test_a_gpu_is_shared_by_its_engines():
    """Two engines on one GPU get half of the configured share each."""
    command = launch(build="cuda", engines=2, overrides={"engine.gpu_memory_share": 0.8}).command()
    assert float(option(command, "--gpu-memory-utilization")) == pytest.approx(0.4)
    assert "--enforce-eager" not in command


def test_the_prefix_cache_is_on_and_tells_what_it_had():
    """Both engines report cached tokens; the cache can be switched off."""
    assert {"--enable-prefix-caching", "--enable-prompt-tokens-details"} <= set(launch().command())
    assert "--no-enable-prefix-caching" in launch(overrides={"engine.prefix_caching": False}).command()
    sglang = SglangLaunch(config=load_config(environment={}), base=BASE, build="cuda", port=8410).command()
    assert "--enable-cache-report" in sglang and "--disable-radix-cache" not in sglang


def test_prompts_are_read_in_pieces_on_gpus_alone():
    """A CPU engine reads each prompt in one step, whatever is configured; on a GPU the size of a step can be set."""
    chosen = {"engine.prefill_tokens": 512}
    assert "--no-enable-chunked-prefill" in launch(overrides=chosen).command()
    gpu = launch(build="cuda", overrides=chosen).command()
    assert "--enable-chunked-prefill" in gpu and option(gpu, "--max-num-batched-tokens") == "512"
    whole = launch(build="cuda", overrides={"engine.chunked_prefill": False}).command()
    assert "--no-enable-chunked-prefill" in whole
    config = load_config(environment={}, overrides=chosen)
    sglang = SglangLaunch(config=config, base=BASE, build="cuda", port=8410).command()
    assert option(sglang, "--chunked-prefill-size") == "512"


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_the_fast_variant_speculates(method):
    """The speculative configuration is what vLLM reads."""
    overrides = {"fleet.fast_method": method, "fleet.fast_tokens": 3, "fleet.draft_model": "/models/draft"}
    found = json.loads(option(launch(Variant.FAST, overrides=overrides).command(), "--speculative-config"))
    assert (found["method"], found["num_speculative_tokens"]) == (method, 3)
    assert ("model" in found) == (method == "draft_model")


def test_the_demo_base_knows_tools_out_of_the_box():
    """The demo's Base gets a parser of tool calls and a template with tools; another Base gets neither."""
    command = launch().command()
    assert "--enable-auto-tool-choice" in command and option(command, "--tool-call-parser") == "hermes"
    assert Path(option(command, "--chat-template")).is_file()
    other = set(launch(overrides={"base.source": "/models/other"}).command())
    assert not {"--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser", "--chat-template"} & other


def test_parsers_and_template_are_the_operators_choice():
    """Named parsers and a template reach the engine as they stand, and empty ones leave everything to the model."""
    overrides = {
        "base.source": "/models/other",
        "engine.tool_call_parser": "llama3_json",
        "engine.reasoning_parser": "qwen3",
        "engine.chat_template": "/templates/chat.jinja",
    }
    command = launch(overrides=overrides).command()
    assert option(command, "--tool-call-parser") == "llama3_json"
    assert option(command, "--reasoning-parser") == "qwen3"
    assert option(command, "--chat-template") == "/templates/chat.jinja"
    bare = launch(overrides={"engine.tool_call_parser": "", "engine.chat_template": ""}).command()
    assert not {"--tool-call-parser", "--chat-template"} & set(bare)


def test_extra_arguments_come_last():
    """What the operator adds wins over what is derived."""
    command = launch(overrides={"engine.extra_args": ["--max-loras", "1"]}).command()
    assert command[-2:] == ["--max-loras", "1"]


def test_the_environment_holds_no_secret_of_hone(monkeypatch):
    """Engines get the machine's environment and vLLM's switches, not Hone's keys."""
    monkeypatch.setenv("HONE_WORKER__API_KEY", "hone-secret")
    monkeypatch.setenv("MARKER", "kept")
    environment = launch(overrides={"worker.api_key": "hone-secret"}).environment()
    assert environment["MARKER"] == "kept" and environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert "hone-secret" not in environment.values()


def test_processors_are_shared_out():
    """Engines with fewer threads than processors are bound to different ones, in turn."""
    allowed = sorted(os.sched_getaffinity(0))
    bound = [
        launch(index=index, overrides={"engine.omp_threads": 1}).environment()["VLLM_CPU_OMP_THREADS_BIND"]
        for index in range(len(allowed))
    ]
    assert bound == [str(cpu) for cpu in allowed]


def test_a_taken_port_is_a_machine_error():
    """The port is checked before the engine is started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(MachineError) as raised:
            check_port("127.0.0.1", taken.getsockname()[1])
    assert "first_port" in (raised.value.hint or "")


async def test_an_environment_without_vllm_is_a_machine_error(tmp_path):
    """A missing interpreter, and one without vLLM, are told with what to set."""
    for python in (str(tmp_path / "python"), sys.executable):
        with pytest.raises(MachineError) as raised:
            await find_build(python)
        assert "engine.python" in (raised.value.hint or "")


async def test_a_process_is_started_watched_and_ended(tmp_path: Path):
    """A process becomes ready, shows as alive, and its whole group ends with it."""
    port = free_port("127.0.0.1")
    (tmp_path / "health").write_text("ok")
    command = [sys.executable, "-c", f"import os\nos.chdir({str(tmp_path)!r})\n{SERVER}", str(port)]
    process = EngineProcess(command=command, environment=dict(os.environ), log_path=tmp_path / "log")
    engine = VllmEngine(f"http://127.0.0.1:{port}")
    said: list[str] = []
    await process.start()
    pid = process.pid
    assert pid is not None
    await process.wait_ready(engine, timeout_seconds=60, progress=said.append)
    assert process.alive() and "ready" in said[0]
    other = EngineProcess(command=command, environment={}, log_path=tmp_path / "log")
    assert other.adopt(pid) and other.alive()
    assert not EngineProcess(command=["x"], environment={}, log_path=tmp_path / "log").adopt(pid)
    assert not await end_leftover(pid, port), "it is not a vLLM server"
    await process.stop()
    assert not process.alive() and not other.alive()
    assert not await engine.health()
    await engine.close()


async def test_an_engine_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch):
    """The stop ends what does not end itself."""
    monkeypatch.setattr("serving.launcher._TERM_SECONDS", 0.2)
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    process = EngineProcess(
        command=[sys.executable, "-c", script], environment=dict(os.environ), log_path=tmp_path / "log"
    )
    await process.start()
    while "up" not in process.log_tail():
        await asyncio.sleep(0.02)
    await process.stop()
    assert not process.alive()


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("ModuleNotFoundError('No module named vllm')", "engine.python"),
        ("ImportError('Arctic Inference is required for suffix decoding')", "arctic-inference"),
    ],
)
async def test_an_engine_that_dies_while_starting_shows_its_log(tmp_path: Path, error: str, hint: str):
    """The error carries the end of the log and a hint that fits."""
    process = EngineProcess(
        command=[sys.executable, "-c", f"raise {error}"],
        environment=dict(os.environ),
        log_path=tmp_path / "log",
    )
    engine = VllmEngine(f"http://127.0.0.1:{free_port('127.0.0.1')}")
    await process.start()
    with pytest.raises(MachineError, match=r"(No module named vllm|Arctic Inference)") as raised:
        await process.wait_ready(engine, timeout_seconds=60, progress=lambda message: None)
    assert hint in (raised.value.hint or "")
    await process.stop()
    await engine.close()


async def test_a_process_that_cannot_start_is_a_machine_error(tmp_path: Path):
    """A missing program is told at once."""
    process = EngineProcess(command=[str(tmp_path / "none")], environment={}, log_path=tmp_path / "log")
    with pytest.raises(MachineError):
        await process.start()
    assert process.pid is None and not process.alive()
    await process.stop()

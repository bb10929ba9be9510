"""The SGLang server's command line and environment."""

import sys

import pytest

from core.config.schema import HoneConfig
from core.errors import ConfigurationError, MachineError
from core.policy import Base
from core.variant import Speculation
from serving.engines.make import engine_maker
from serving.engines.sglang import SglangEngine
from serving.engines.vllm import VllmEngine
from serving.launch import Launch
from serving.launch_sglang import LAUNCHES, SGLANG_MODULE, SglangLaunch, find_build_of
from serving.launcher import _is_server

BASE = Base(name="base", path="/bases/base", fingerprint="f")


def launch(build="cuda", speculation=None, **sections) -> SglangLaunch:
    """A launch on port 8410."""
    config = HoneConfig.model_validate({"engine": {"kind": "sglang", **sections.pop("engine", {})}, **sections})
    return SglangLaunch(config=config, base=BASE, build=build, port=8410, engines=2, speculation=speculation)


def value(command: list[str], option: str) -> str:
    """What follows an option."""
    return command[command.index(option) + 1]


def test_the_command_serves_the_base_with_adapters_and_metrics():
    """Everything that the fleet relies on is on, and the operator's arguments come last."""
    command = launch(engine={"extra_args": ["--watchdog-timeout", "900"]}).command()
    assert command[1:3] == ["-m", SGLANG_MODULE]
    assert value(command, "--served-model-name") == "base" and value(command, "--port") == "8410"
    assert {"--enable-lora", "--enable-metrics"} <= set(command)
    assert value(command, "--sampling-defaults") == "openai"
    assert "--speculative-algorithm" not in command and "--device" not in command
    assert command[-2:] == ["--watchdog-timeout", "900"]


def test_a_cpu_build_is_told_so():
    """SGLang's own choice would be a GPU, and a LoRA backend that needs one."""
    command = launch("cpu").command()
    assert value(command, "--device") == "cpu" and value(command, "--lora-backend") == "torch_native"
    assert "--mem-fraction-static" not in command


@pytest.mark.parametrize(("method", "algorithm"), [("ngram", "NGRAM"), ("eagle3", "EAGLE3"), ("mtp", "NEXTN")])
def test_methods_have_sglangs_names_and_lossless_thresholds(method, algorithm, tmp_path):
    """A draft token is accepted exactly as often as the target would sample it."""
    speculation = Speculation(method=method, tokens=3)
    fleet = {"draft_model": str(tmp_path)}
    command = launch(speculation=speculation, fleet=fleet, data_dir=str(tmp_path)).command()
    assert value(command, "--speculative-algorithm") == algorithm
    assert value(command, "--speculative-accept-threshold-single") == "1.0"
    assert value(command, "--speculative-accept-threshold-acc") == "1.0"
    assert value(command, "--speculative-num-draft-tokens") == "4"
    assert ("--speculative-num-steps" in command) is (method != "ngram")


def test_what_sglang_lacks_is_refused():
    """No engine starts with a method that it does not have, or with arguments that change what is answered."""
    with pytest.raises(ConfigurationError):
        launch(speculation=Speculation(method="suffix")).command()
    with pytest.raises(ConfigurationError):
        launch(engine={"extra_args": ["--speculative-accept-threshold-single", "0.5"]}).command()


def test_health_samples_no_token_and_vllms_switches_stay_out():
    """A paused engine is healthy, and the environment has nothing of another engine or of Hone's own keys."""
    environment = launch("cpu").environment()
    assert environment["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"
    assert not [key for key in environment if key.startswith(("VLLM_", "HONE_"))]


def test_the_kind_chooses_adapter_and_launch():
    """One place each says what belongs to a kind."""
    url = "http://127.0.0.1:1"
    assert isinstance(engine_maker("vllm", "base")(url), VllmEngine)
    assert isinstance(engine_maker("sglang", "base")(url), SglangEngine)
    assert LAUNCHES["vllm"] is Launch and LAUNCHES["sglang"] is SglangLaunch
    with pytest.raises(ConfigurationError):
        engine_maker("other", "base")


async def test_an_environment_without_sglang_is_named():
    """The error says which interpreter lacks it."""
    with pytest.raises(MachineError, match="holds no SGLang"):
        await find_build_of("sglang", sys.executable)


def test_a_left_sglang_server_is_known_by_its_port():
    """A fleet that follows finds the engines of both kinds."""
    command = launch().command()
    assert _is_server(command, 8410) and not _is_server(command, 8411)

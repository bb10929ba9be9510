"""The command line: what it prints, and that a failure is one line, a hint and exit code 1."""

import json
import os
import socket
import tomllib

import pytest
from prometheus_client import generate_latest
from typer.testing import CliRunner

from core.config.schema import HoneConfig
from core.errors import ConfigurationError, MachineError
from hone.cli import app
from hone.http_server import listen
from hone.local_keys import LocalKeys, keys_path, read_local_keys, write_local_keys
from hone.processes.runner import _serve_metrics, process_registry


@pytest.fixture
def taken_port():
    """A port on which somebody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def free_port():
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def hone(tmp_path, free_port, monkeypatch):
    """Runs a command in a folder of its own, with local keys and no gateway."""
    for name in [name for name in os.environ if name.startswith("HONE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HONE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HONE_GATEWAY__PORT", str(free_port))
    write_local_keys(HoneConfig(data_dir=tmp_path / "data"), LocalKeys(admin="a", worker="w"))

    def run(*arguments):
        return CliRunner().invoke(app, list(arguments))

    return run


def test_config_show_prints_the_resolved_configuration(hone, free_port, monkeypatch):
    """It is TOML, holds what is set, and no secret."""
    monkeypatch.setenv("HONE_STORE__URL", "postgresql+asyncpg://hone:hunter2@db/hone")
    shown = hone("config", "show")
    assert shown.exit_code == 0
    assert tomllib.loads(shown.stdout)["gateway"]["port"] == free_port
    assert "hunter2" not in shown.output


def test_config_reference_names_every_section(hone):
    """The reference is Markdown with the keys of all sections."""
    shown = hone("config", "reference")
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in HoneConfig.model_fields)


def test_doctor_fails_without_a_compiler(hone, monkeypatch, tmp_path):
    """An empty PATH has no compiler: exit code 1, and how to get one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    result = hone("doctor")
    assert result.exit_code == 1
    assert "C++ compiler" in result.output
    assert "build-essential" in result.output


def test_doctor_fails_without_vllm(hone, monkeypatch, tmp_path):
    """An engine interpreter that is away or cannot run is a finding, not a traceback."""
    program = tmp_path / "python"
    monkeypatch.setenv("HONE_ENGINE__PYTHON", str(program))
    result = hone("doctor")
    assert result.exit_code == 1
    assert "missing engine (vLLM)" in result.output
    program.write_bytes(b"\x00\x01")
    program.chmod(0o755)
    result = hone("doctor")
    assert result.exit_code == 1
    assert "cannot be run" in " ".join(result.output.split())


def test_doctor_asks_only_for_what_is_used(hone, monkeypatch, tmp_path):
    """Attached engines need no vLLM and no compiler here, and the process runtime no bubblewrap."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HONE_ENGINE__PYTHON", str(tmp_path / "none"))
    monkeypatch.setenv("HONE_SANDBOX__RUNTIME", "process")
    monkeypatch.setenv("HONE_FLEET__ATTACH", "{standard = 'http://h:1', fast = 'http://h:2'}")
    result = hone("doctor")
    for name in ("C++ compiler", "bubblewrap", "engine (vLLM)"):
        assert f"missing {name}" not in result.output


@pytest.mark.parametrize("command", [("chat", "hello"), ("policies", "list"), ("episodes", "list")])
def test_a_gateway_that_does_not_run_is_said_so(hone, command):
    """One line and a hint, exit code 1, no traceback; a proxy of the environment is not asked."""
    result = hone(*command)
    assert result.exit_code == 1
    assert "does not answer" in " ".join(result.output.split())
    assert "hone up" in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)


def test_an_unknown_key_in_the_environment_is_named(hone, monkeypatch):
    """A mistyped variable stops the command and is named."""
    monkeypatch.setenv("HONE_GATEWAY__PRT", "1")
    result = hone("config", "show")
    assert result.exit_code == 1
    assert "gateway.prt" in result.output


def test_importing_a_broken_folder_stores_nothing(hone, tmp_path):
    """Every fault is listed, and the good Task beside them is not stored either."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    good = {"prompt": "What is 2 + 2?", "verifiers": [{"kind": "answer", "expected": "4"}]}
    (folder / "a.json").write_text(json.dumps(good))
    (folder / "b.json").write_text("{")
    (folder / "c.json").write_text(json.dumps({"nonsense": 1}))
    result = hone("tasks", "import", str(folder))
    assert result.exit_code == 1
    assert "b.json" in result.output
    assert "c.json" in result.output
    listed = hone("tasks", "list")
    assert listed.exit_code == 0
    assert "2 + 2" not in listed.output


def test_a_busy_gateway_port_is_a_machine_error(taken_port):
    """The error names the port, and its hint the key."""
    with pytest.raises(MachineError, match=str(taken_port)) as caught:
        listen("127.0.0.1", taken_port, key="gateway.port")
    assert "gateway.port" in (caught.value.hint or "")


def test_a_busy_metrics_port_is_a_machine_error(taken_port):
    """The error names the port, and its hint the key."""
    with pytest.raises(MachineError, match=str(taken_port)) as caught:
        _serve_metrics("127.0.0.1", taken_port, process_registry())
    assert "metrics_port" in (caught.value.hint or "")


def test_every_process_reports_itself():
    """A process's registry holds its memory and processor time."""
    text = generate_latest(process_registry()).decode()
    assert "process_resident_memory_bytes" in text
    assert "process_cpu_seconds_total" in text


def test_local_keys_are_private_and_a_damaged_file_is_said_so(tmp_path):
    """The file is its owner's alone, replaced in one step; damage is a ConfigurationError that quotes no key."""
    config = HoneConfig(data_dir=tmp_path)
    write_local_keys(config, LocalKeys(admin="a", worker="w"))
    write_local_keys(config, LocalKeys(admin="b", worker="w"))
    assert read_local_keys(config).admin == "b"
    assert keys_path(config).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["keys.json"]
    keys_path(config).write_text('{"admin": "secret')
    with pytest.raises(ConfigurationError, match="damaged") as caught:
        read_local_keys(config)
    assert "secret" not in str(caught.value)

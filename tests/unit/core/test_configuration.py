"""Configuration: file, variables, refusals by name, and a child that resolves the same."""

import pytest

from core.config.load import environment_for_child, load_config, masked
from core.errors import ConfigurationError


def test_a_variable_wins_over_the_file(tmp_path):
    """HONE_ variables override the file; what neither names keeps its default."""
    file = tmp_path / "hone.toml"
    file.write_text("[gateway]\nport = 9000\nhost = '0.0.0.0'\n")
    config = load_config(file, environment={"HONE_GATEWAY__PORT": "9100"})
    assert (config.gateway.port, config.gateway.host) == (9100, "0.0.0.0")
    assert config.fleet.first_port == 8410


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({"HONE_GATEWAY__PRT": "1"}, "gateway.prt: unknown key"),
        ({"HONE_NOPE": "1"}, "nope: unknown key"),
        ({"HONE_GATEWAY__PORT": "70000"}, "gateway.port"),
        ({"HONE_GATEWAY__PORT": "eighty"}, "gateway.port"),
        ({"HONE_LEARNER__LORA__RANK": "64"}, "learner.lora.rank"),
        ({"HONE_FLEET__FAST_METHOD": "draft_model"}, "fleet.draft_model"),
        ({"HONE_FLEET__ATTACH": "{turbo = 'http://x'}"}, "fleet.attach"),
    ],
)
def test_a_bad_key_or_combination_is_refused_by_name(environment, key):
    """The error names the key that is wrong."""
    with pytest.raises(ConfigurationError, match=key):
        load_config(environment=environment | {"HONE_CONFIG": "/dev/null"})


def test_a_broken_or_missing_file_is_named(tmp_path):
    """A file that was asked for and cannot be used is an error, not a default."""
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_config(tmp_path / "none.toml", environment={})
    broken = tmp_path / "broken.toml"
    broken.write_text("[gateway\n")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        load_config(broken, environment={})


def test_secrets_are_masked():
    """What is printed holds no secret."""
    config = load_config(environment={"HONE_STORE__REDIS_URL": "redis://:hunter2@host", "HONE_CONFIG": "/dev/null"})
    assert "hunter2" not in str(masked(config))
    assert "hunter2" not in repr(config)


def test_a_child_process_resolves_the_same_configuration():
    """The environment made for a child leads to an equal configuration, secrets and odd texts included."""
    environment = {
        "HONE_CONFIG": "/dev/null",
        "HONE_STORE__REDIS_URL": 'redis://:a"b\\c@host',
        "HONE_ENGINE__EXTRA_ARGS": "['--a', '{\"x\": 1}']",
        "HONE_FLEET__ATTACH": "{standard = 'http://127.0.0.1:1'}",
        "HONE_BASE__NAME": "12",
        "HONE_LEARNER__LEARNING_RATE": "1e-4",
    }
    environment["HONE_BASE__NAME"] = '"12"'
    config = load_config(environment=environment)
    child = environment_for_child(config)
    assert load_config(environment=child) == config
    assert child["PATH"]

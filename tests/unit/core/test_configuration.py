"""Configuration: file, variables, refusals by name, and a child that resolves the same."""

import pytest

from core.config.load import NOT_KEYS, environment_for_child, load_config, masked
from core.errors import ConfigurationError
from tests.services import POSTGRES_VARIABLE, REDIS_VARIABLE


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
        ({"HONE_FLEET__FAST_METHOD": "eagle3"}, "fleet.draft_model"),
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


def test_variables_of_the_tools_around_hone_are_no_keys():
    """The installer's, the tests' and the compose file's variables are ignored; any other HONE_ name is a key."""
    environment = {name: "x" for name in NOT_KEYS} | {"HONE_CONFIG": "/dev/null"}
    assert load_config(environment=environment) == load_config(environment={"HONE_CONFIG": "/dev/null"})
    used = {"HONE_PYTHON", POSTGRES_VARIABLE, REDIS_VARIABLE, "HONE_POSTGRES_PASSWORD", "HONE_IMAGE_TARGET"}
    assert used == NOT_KEYS
    with pytest.raises(ConfigurationError, match="pythons"):
        load_config(environment={"HONE_PYTHONS": "x", "HONE_CONFIG": "/dev/null"})


@pytest.mark.parametrize(
    ("key", "url", "shown"),
    [
        (
            "store.url",
            "postgresql+asyncpg://hone:pa/ss@w@db:5432/hone",
            "postgresql+asyncpg://hone:**********@db:5432/hone",
        ),
        (
            "store.url",
            "postgresql+asyncpg://db/hone?password=hunter2&ssl=on",
            "postgresql+asyncpg://db/hone?password=**********&ssl=on",
        ),
        ("store.blobs_url", "s3://id:hunter2@bucket/x", "s3://id:**********@bucket/x"),
        ("fleet.attach", {"fast": "http://me:hunter2@host:1"}, {"fast": "http://me:**********@host:1"}),
        ("engine.extra_args", ["--x", "http://:hunter2@host"], ["--x", "http://:**********@host"]),
        ("worker.gateway_url", "http://host:8400", "http://host:8400"),
    ],
)
def test_passwords_inside_urls_are_masked(key, url, shown):
    """Wherever a URL carries a password, the printed configuration does not; the rest of it stays readable."""
    printed = masked(load_config(environment={"HONE_CONFIG": "/dev/null"}, overrides={key: url}))
    section, _, name = key.partition(".")
    assert printed[section][name] == shown


def test_the_gateway_has_a_fixed_port():
    """Port 0 would be one that nobody could find."""
    with pytest.raises(ConfigurationError, match=r"gateway\.port"):
        load_config(environment={"HONE_GATEWAY__PORT": "0", "HONE_CONFIG": "/dev/null"})

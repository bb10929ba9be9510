"""What an engine may be told about speculation."""

import pytest

from core.config.load import load_config
from core.errors import ConfigurationError
from core.policy import Base
from core.variant import Speculation, Variant
from serving.launch import Launch, speculation_of
from serving.speculation.methods import refuse_speculation_in, require_lossless, speculative_config

BASE = Base(name="smol", path="/models/smol", fingerprint="f")


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model", "eagle3", "mtp"])
def test_every_method_has_its_settings(method):
    """Methods that need a folder name it, and the others do not."""
    found = speculative_config(Speculation(method=method, tokens=3), draft_model="/models/draft")
    assert (found["method"], found["num_speculative_tokens"]) == (method, 3)
    assert ("model" in found) == (method in ("draft_model", "eagle3"))
    assert ("prompt_lookup_max" in found) == (method == "ngram")


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_a_missing_draft_model_is_named(method):
    """Without a folder the error says which field to set."""
    with pytest.raises(ConfigurationError) as caught:
        speculative_config(Speculation(method=method))
    assert "fleet.draft_model" in (caught.value.hint or "")


def test_options_pass_and_win():
    """Further settings reach the engine, and change the defaults of a method."""
    options = {"prompt_lookup_max": 6, "rejection_sample_method": "block"}
    found = speculative_config(Speculation(method="ngram"), options=options)
    assert found["prompt_lookup_max"] == 6 and found["rejection_sample_method"] == "block"


@pytest.mark.parametrize(
    "settings",
    [
        {"rejection_sample_method": "synthetic"},
        {"rejection_sample_method": "typical"},
        {"rejection_sample_method": None},
        {"synthetic_acceptance_length": 3.0},
        {"synthetic_acceptance_rates": [0.9]},
        {"posterior_threshold": 0.1},
        {"typical_acceptance_sampler_posterior_alpha": 0.3},
        {"acceptance_method": "rejection_sampler"},
    ],
)
def test_lossy_acceptance_is_refused(settings):
    """Whatever would change the distribution is an error that names it."""
    with pytest.raises(ConfigurationError):
        require_lossless(settings)
    with pytest.raises(ConfigurationError):
        speculative_config(Speculation(method="ngram"), options=settings)


@pytest.mark.parametrize("name", ["method", "model", "num_speculative_tokens"])
def test_options_do_not_repeat_fields(name):
    """What has a field of its own is set there."""
    with pytest.raises(ConfigurationError, match=name):
        speculative_config(Speculation(method="ngram"), options={name: "x"})


@pytest.mark.parametrize(
    "argument",
    [
        "--speculative-config",
        '--speculative-config={"method":"ngram"}',
        "--speculative_config",
        "--speculative-config.rejection_sample_method",
        "-sc",
        '-sc={"method":"ngram"}',
        "--spec-method",
        "--spec",
        "--config",
        "--config=/etc/vllm.yaml",
    ],
)
def test_engine_arguments_do_not_speculate(argument):
    """Speculation in engine.extra_args is refused in all of its spellings, for both Variants."""
    with pytest.raises(ConfigurationError):
        refuse_speculation_in((argument,))
    for variant in Variant:
        config = load_config(environment={}, overrides={"engine.extra_args": (argument, "x")})
        launch = Launch(config=config, base=BASE, build="cpu", port=8410, speculation=speculation_of(config, variant))
        with pytest.raises(ConfigurationError):
            launch.command()


def test_other_engine_arguments_pass():
    """Arguments that only look alike are left alone."""
    refuse_speculation_in(("--specialize-active-lora", "--seed", "1", "--config-format", "hf"))

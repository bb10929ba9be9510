"""What engines can do together: every refusal names its reason, and what works is let through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config.schema import HoneConfig
from core.deployment import Deployment
from core.errors import ConfigurationError
from core.variant import Speculation, Variant
from serving.capabilities import adapter_field, capabilities, check_configuration, check_fleet, refused_fields


def deployment(engine="vllm", version="0.32.0", speculation=None, **fields) -> Deployment:
    """A Deployment with so much as the table looks at."""
    return Deployment(
        id="dep_1",
        base="base",
        variant=Variant.STANDARD if speculation is None else Variant.FAST,
        engine=engine,
        engine_version=version,
        url="http://127.0.0.1:1",
        speculation=speculation,
        **fields,
    )


def test_fields_are_refused_only_by_engines_that_can_speculate():
    """min_p and logit_bias are refused where vLLM was started to speculate, also while that is switched off."""
    speculation = Speculation(method="ngram")
    assert refused_fields(deployment()) == {}
    for speculating in (True, False):
        refused = refused_fields(deployment(speculation=speculation, speculating=speculating))
        assert set(refused) == {"min_p", "logit_bias"}
        assert all("speculative" in reason for reason in refused.values())
    assert refused_fields(deployment("sglang", "0.5.23", speculation)) == {}


def test_releases_before_a_fix_have_a_row_of_their_own():
    """Log-probs of vLLM before 0.14 are wrong under speculation: asked for, and for training, they are refused."""
    old = deployment(version="0.13.1", speculation=Speculation(method="ngram"))
    assert "logprobs" in refused_fields(old)
    with pytest.raises(ConfigurationError, match="log-probs"):
        check_configuration(engine="vllm", release="0.13.1", method="ngram")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"engine": "sglang", "method": "suffix"}, "no suffix decoding"),
        ({"engine": "sglang", "method": "draft_model"}, "stand-alone draft model"),
        ({"engine": "sglang", "method": "eagle3", "full_weights": True}, "replace all weights"),
        ({"engine": "vllm", "release": "0.10.2", "method": "draft_model"}, "LoRA"),
        ({"engine": "llama.cpp"}, "no engine that Hone knows"),
    ],
)
def test_what_cannot_be_combined_is_refused_with_the_reason(change, reason):
    """A configuration outside of the table never starts, and the error says what to do."""
    with pytest.raises(ConfigurationError, match=reason) as caught:
        check_configuration(**change)
    assert caught.value.hint


@pytest.mark.parametrize("method", [None, "ngram", "suffix", "draft_model", "eagle3", "mtp"])
def test_vllm_takes_every_method_beside_lora_and_full_weights(method):
    """What was tried on vLLM 0.32 is let through."""
    check_configuration(engine="vllm", release="0.32.0", method=method, full_weights=True)


def test_sglang_takes_a_draft_model_without_lora():
    """The refusal is of the combination, not of the method."""
    check_configuration(engine="sglang", method="draft_model", lora=False)


def test_only_launched_fast_engines_are_checked():
    """Somebody else's engine speculates as it likes, and a standard one does not."""
    section = {"engine": {"kind": "sglang"}, "fleet": {"fast_method": "suffix", "variants": ["standard", "fast"]}}
    with pytest.raises(ConfigurationError):
        check_fleet(HoneConfig.model_validate(section))
    for change in ({"variants": ["standard"]}, {"attach": {"fast": "http://engine:1"}}):
        check_fleet(HoneConfig.model_validate({**section, "fleet": {**section["fleet"], **change}}))


def test_sglang_is_asked_for_an_adapter_by_both_names():
    """The adapter's name alone would be answered by the Base."""
    assert adapter_field("sglang", "base", "coder-v3") == "base:coder-v3"
    assert adapter_field("vllm", "base", "coder-v3") == "coder-v3"


@given(release=st.one_of(st.none(), st.text(max_size=12), st.from_regex(r"\d{1,3}(\.\d{1,3}){0,3}(rc1|\+cpu)?")))
def test_every_release_has_a_row(release):
    """Whatever an engine calls itself, there is exactly one answer."""
    for engine in ("vllm", "sglang", "fake"):
        assert capabilities(engine, release).engine in ("vllm", "sglang")

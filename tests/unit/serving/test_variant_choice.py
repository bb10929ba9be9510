"""The rule behind NAME-auto: what speaks for speculation and what against it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config.gateway import AutoSection
from core.variant import Variant
from serving.variant_choice import RequestClass, VariantReason, VariantState, choose_variant

RULE = AutoSection()
FAST = VariantState(running=0, speculating=True)
STANDARD = VariantState(running=0)
REASONS_FOR_FAST = {
    VariantReason.TOOLS,
    VariantReason.CONSTRAINED,
    VariantReason.INTERACTIVE,
    VariantReason.NO_STANDARD_REPLICA,
}


def chosen(request: RequestClass, *, standard=STANDARD, fast=FAST, before=None, rule=RULE):
    return choose_variant(request, standard=standard, fast=fast, before=before, rule=rule)


@pytest.mark.parametrize(
    ("request_class", "reason"),
    [
        (RequestClass(), VariantReason.INTERACTIVE),
        (RequestClass(tools=True), VariantReason.TOOLS),
        (RequestClass(constrained=True), VariantReason.CONSTRAINED),
        (RequestClass(tools=True, temperature=2.0), VariantReason.TOOLS),
        (RequestClass(latency="batch", tools=True), VariantReason.BATCH),
        (RequestClass(choices=4), VariantReason.MANY_CHOICES),
        (RequestClass(answer_tokens=8), VariantReason.SHORT_ANSWER),
        (RequestClass(answer_tokens=16, prompt_tokens=4000), VariantReason.SHORT_ANSWER),
        (RequestClass(answer_tokens=256, prompt_tokens=4000), VariantReason.INTERACTIVE),
        (RequestClass(temperature=1.5), VariantReason.HIGH_TEMPERATURE),
    ],
)
def test_the_request_decides_when_both_are_idle(request_class, reason):
    """Each class of request gets its Variant for its own reason."""
    variant, why = chosen(request_class)
    assert (variant is Variant.FAST, why) == (reason in REASONS_FOR_FAST, reason)


def test_a_missing_variant_leaves_no_choice():
    """Without one Variant the other answers."""
    assert chosen(RequestClass(), fast=None) == (Variant.STANDARD, VariantReason.NO_FAST_REPLICA)
    assert chosen(RequestClass(), standard=None) == (Variant.FAST, VariantReason.NO_STANDARD_REPLICA)


def test_a_busy_fast_replica_is_left_for_one_that_is_not_busier():
    """From the bound on standard answers, unless it has even more to do; an Episode in between stays where it is."""
    busy = VariantState(running=RULE.busy_requests, speculating=True)
    assert chosen(RequestClass(), fast=busy)[1] is VariantReason.BUSY
    assert chosen(RequestClass(), fast=busy, standard=VariantState(running=99))[0] is Variant.FAST
    assert chosen(RequestClass(), fast=busy, before=Variant.FAST)[0] is Variant.FAST
    busier = VariantState(running=2 * RULE.busy_requests, speculating=True)
    assert chosen(RequestClass(), fast=busier, before=Variant.FAST)[1] is VariantReason.BUSY


def test_what_was_seen_lately_counts():
    """Speculation that is off, or that was refused too often, is not chosen."""
    assert chosen(RequestClass(), fast=VariantState(running=0))[1] is VariantReason.SPECULATION_OFF
    refused = VariantState(running=0, speculating=True, accepted_per_draft=0.1)
    assert chosen(RequestClass(tools=True), fast=refused)[1] is VariantReason.LOW_ACCEPTANCE


states = st.none() | st.builds(
    VariantState,
    running=st.integers(0, 40),
    speculating=st.booleans(),
    accepted_per_draft=st.none() | st.floats(0, 5),
)
classes = st.builds(
    RequestClass,
    latency=st.sampled_from(["interactive", "batch"]),
    tools=st.booleans(),
    constrained=st.booleans(),
    answer_tokens=st.none() | st.integers(1, 4096),
    prompt_tokens=st.integers(0, 100_000),
    choices=st.integers(1, 8),
    temperature=st.floats(0, 2),
)


@given(classes, states, states, st.none() | st.sampled_from(list(Variant)))
def test_the_reason_fits_the_choice_and_more_load_never_makes_fast_likelier(request_class, standard, fast, before):
    """Every choice has a reason of its side, and a busier fast replica is chosen only if an idler one is."""
    variant, reason = chosen(request_class, standard=standard, fast=fast, before=before)
    assert (variant is Variant.FAST) == (reason in REASONS_FOR_FAST)
    if variant is Variant.FAST and fast is not None:
        idler = VariantState(max(0, fast.running - 1), fast.speculating, fast.accepted_per_draft)
        assert chosen(request_class, standard=standard, fast=idler, before=before)[0] is Variant.FAST

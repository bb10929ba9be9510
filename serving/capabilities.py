"""What each engine and release can do together: checked before an engine starts and before a request is sent.

Pure. Read from vLLM 0.32.0 (``sampling_params.py``, ``config/speculative.py``, ``v1/core/sched/scheduler.py``) and
SGLang 0.5.23 (``srt/arg_groups/lora_hook.py``, ``srt/managers/scheduler_components/weight_updater.py``,
``srt/speculative``); what was also tried on a running engine is said at the row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from core.config.schema import HoneConfig
from core.deployment import Deployment
from core.errors import ConfigurationError
from core.variant import SpeculationMethod, Variant

InFlight = Literal["recompute", "stale", "abort", "wait"]
"""What a pause for new weights can do with requests in flight: recompute them, go on with old keys and values, end
them, or let them end first."""
Release = tuple[int, ...]

_ALL: frozenset[SpeculationMethod] = frozenset({"ngram", "suffix", "draft_model", "eagle3", "mtp"})
_NONE: frozenset[SpeculationMethod] = frozenset()
_EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Capabilities:
    """One row: what releases ``since`` ≤ release < ``before`` of an engine can do."""

    engine: str
    since: Release
    before: Release
    methods: frozenset[SpeculationMethod]
    """Ways to speculate that it has, under Hone's names."""
    with_lora: frozenset[SpeculationMethod]
    """Those that work beside LoRA adapters; the adapter is on the target alone."""
    with_logprobs: frozenset[SpeculationMethod]
    """Those under which the log-probs that it returns are the target's own."""
    with_full_weights: frozenset[SpeculationMethod]
    """Those under which all weights of the target can be replaced from disk while it runs."""
    live_drafter: frozenset[SpeculationMethod]
    """Those whose drafter can be replaced without a restart."""
    switchable: frozenset[SpeculationMethod]
    """Those that can be switched off and on without a restart."""
    in_flight: frozenset[InFlight]
    refused: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """Request fields that it refuses while it is able to speculate → reason."""
    reasons: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    """Speculation method → why it is not in ``methods`` or ``with_lora``."""


_VLLM_SAMPLERS = "vLLM does not apply it under speculative decoding"
_TABLE = (
    # Tried on the CPU build of 0.32.0: the refused fields, LoRA beside ngram and draft_model, a full reload with
    # requests in flight, a live drafter, and switching of ngram. The last two need Hone's engine plugin.
    Capabilities(
        engine="vllm",
        since=(0, 14),
        before=(0, 34),
        methods=_ALL,
        with_lora=_ALL,
        with_logprobs=_ALL,
        with_full_weights=_ALL,
        live_drafter=frozenset({"draft_model"}),
        switchable=_ALL,
        in_flight=frozenset({"recompute", "stale", "abort", "wait"}),
        refused=MappingProxyType({"min_p": _VLLM_SAMPLERS, "logit_bias": _VLLM_SAMPLERS}),
    ),
    # Log-probs under speculation were those of the draft before 0.14 (vllm-project/vllm#34497).
    Capabilities(
        engine="vllm",
        since=(0, 0),
        before=(0, 14),
        methods=_ALL - {"suffix"},
        with_lora=frozenset({"ngram"}),
        with_logprobs=_NONE,
        with_full_weights=_NONE,
        live_drafter=_NONE,
        switchable=_NONE,
        in_flight=frozenset({"abort"}),
        refused=MappingProxyType(
            {
                "min_p": _VLLM_SAMPLERS,
                "logit_bias": _VLLM_SAMPLERS,
                "logprobs": "this release of vLLM returns wrong log-probs under speculative decoding",
            }
        ),
    ),
    Capabilities(
        engine="sglang",
        since=(0, 5),
        before=(0, 6),
        methods=frozenset({"ngram", "draft_model", "eagle3", "mtp"}),
        with_lora=frozenset({"ngram", "eagle3", "mtp"}),
        with_logprobs=frozenset({"ngram", "draft_model", "eagle3", "mtp"}),
        # Weights from disk go into a draft model of its own as well, which they do not fit.
        with_full_weights=frozenset({"ngram"}),
        live_drafter=_NONE,
        switchable=_NONE,
        in_flight=frozenset({"recompute", "stale", "abort"}),
        reasons=MappingProxyType(
            {
                "suffix": "SGLang has no suffix decoding",
                "draft_model": "SGLang does not combine LoRA with a stand-alone draft model",
            }
        ),
    ),
)


def capabilities(engine: str, release: str | None = None) -> Capabilities:
    """The row of an engine's release, such as ``0.32.0``; the newest row where the release is unknown or newer.

    Raises ConfigurationError for an engine that is not known. A fake engine plays vLLM.
    """
    rows = [row for row in _TABLE if row.engine == ("vllm" if engine == "fake" else engine)]
    if not rows:
        raise ConfigurationError(f"'{engine}' is no engine that Hone knows", hint="use vllm or sglang")
    newest = max(rows, key=lambda row: row.since)
    parsed = _release(release)
    if parsed is None or parsed >= newest.since:
        return newest
    return next((row for row in rows if row.since <= parsed < row.before), newest)


def refused_fields(deployment: Deployment) -> Mapping[str, str]:
    """Request fields that this replica's engine refuses, each with the reason; empty: none.

    An engine that was started to speculate refuses them also while speculation is switched off.
    """
    if deployment.speculation is None:
        return _EMPTY
    return capabilities(deployment.engine, deployment.engine_version).refused


def adapter_field(engine: str, base: str, adapter: str) -> str:
    """What the ``model`` field of a client's request to this engine must say for an adapter of this name.

    SGLang answers for a name without its Base's in front as the Base itself, without a word.
    """
    return f"{base}:{adapter}" if engine == "sglang" else adapter


def check_configuration(
    *,
    engine: str,
    release: str | None = None,
    method: SpeculationMethod | None = None,
    full_weights: bool = False,
    lora: bool = True,
) -> None:
    """Raise ConfigurationError, with the reason, for what such an engine cannot do together.

    ``method``: how a replica speculates, None: not at all; ``full_weights``: it is to carry a Policy's weights in
    place of the Base's; ``lora``: it is to serve adapters.
    """
    row = capabilities(engine, release)
    if method is None:
        return
    if method not in row.methods:
        reason = row.reasons.get(method, f"this release of {engine} does not have it")
        raise ConfigurationError(f"{engine} cannot speculate by '{method}': {reason}", hint=_other(row.methods))
    if lora and method not in row.with_lora:
        reason = row.reasons.get(method, f"this release of {engine} does not combine LoRA with it")
        raise ConfigurationError(
            f"{engine} cannot serve LoRA adapters and speculate by '{method}': {reason}", hint=_other(row.with_lora)
        )
    if full_weights and method not in row.with_full_weights:
        raise ConfigurationError(
            f"{engine} cannot replace all weights of a running engine that speculates by '{method}'",
            hint=_other(row.with_full_weights),
        )
    if method not in row.with_logprobs:
        raise ConfigurationError(
            f"this release of {engine} returns wrong log-probs when it speculates by '{method}'",
            hint="use a newer release, or fleet.variants without 'fast'",
        )


def check_fleet(config: HoneConfig) -> None:
    """Raise ConfigurationError for what the engines of ``config`` cannot do together."""
    fleet = config.fleet
    speculates = Variant.FAST in fleet.variants and Variant.FAST not in fleet.attach
    method = fleet.fast_method if speculates else None
    check_configuration(engine=config.engine.kind, method=method, full_weights=bool(fleet.full_weights_policy))


def _other(methods: frozenset[SpeculationMethod]) -> str:
    if not methods:
        return "leave 'fast' out of fleet.variants"
    return f"set fleet.fast_method to one of {', '.join(sorted(methods))}, or leave 'fast' out of fleet.variants"


def _release(text: str | None) -> Release | None:
    """The leading numbers of a release; None where there are none."""
    numbers: list[int] = []
    for part in (text or "").split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers) or None

"""How an engine is told to speculate, and that it is told nothing which changes answers. Pure.

Names and meaning of the settings: vLLM 0.32, ``vllm/config/speculative.py``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import ConfigurationError
from core.variant import Speculation

LOSSLESS_ACCEPTANCE = ("standard", "block")
"""``standard``: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (2302.01318); ``block``: Sun et al. 2024
(2403.10444). Both leave the target's distribution as it is. ``synthetic`` accepts by a die, for measuring speed."""

_ACCEPTANCE = "rejection_sample_method"
_KNOWN_LOSSY = ("synthetic_", "posterior_", "typical_", "acceptance_method", "spec_decoding_acceptance_method")
"""Beginnings of settings that choose or tune an acceptance which changes the distribution, in this vLLM or others."""
_OWN = ("method", "model", "num_speculative_tokens")
_WITH_FOLDER = ("draft_model", "eagle3")

NGRAM_LONGEST = 5
NGRAM_SHORTEST = 2
"""Tokens that must repeat before what followed them is proposed; see docs/benchmarks.md for how they were chosen."""


def speculative_config(
    speculation: Speculation, *, draft_model: str = "", options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """vLLM's ``--speculative-config``. ``draft_model``: folder of a draft model or of EAGLE heads.

    ``options`` are further settings as vLLM names them. ConfigurationError: a setting would change answers, a
    method lacks its folder, or an option says again what the configuration has a field for.
    """
    chosen = dict(options or {})
    for name in _OWN:
        if name in chosen:
            raise ConfigurationError(
                f"fleet.fast_options must not name '{name}'",
                hint="use fleet.fast_method, fleet.draft_model and fleet.fast_tokens",
            )
    settings: dict[str, Any] = {"method": speculation.method, "num_speculative_tokens": speculation.tokens}
    if speculation.method == "ngram":
        settings |= {"prompt_lookup_max": NGRAM_LONGEST, "prompt_lookup_min": NGRAM_SHORTEST}
    if speculation.method in _WITH_FOLDER:
        if not draft_model:
            raise ConfigurationError(
                f"fleet.fast_method '{speculation.method}' needs a draft model",
                hint="set fleet.draft_model to a folder, or let the learner distil a Drafter",
            )
        settings["model"] = draft_model
    require_lossless(chosen)
    return settings | chosen


def require_lossless(settings: Mapping[str, Any]) -> None:
    """ConfigurationError when a speculative config asks for an acceptance that changes the distribution."""
    acceptance = settings.get(_ACCEPTANCE, LOSSLESS_ACCEPTANCE[0])
    if acceptance not in LOSSLESS_ACCEPTANCE:
        raise ConfigurationError(
            f"'{_ACCEPTANCE}' is '{acceptance}', which changes what is answered",
            hint=f"only {' and '.join(LOSSLESS_ACCEPTANCE)} are lossless",
        )
    for name in settings:
        if name.startswith(_KNOWN_LOSSY):
            raise ConfigurationError(
                f"'{name}' belongs to an acceptance of draft tokens that changes what is answered",
                hint="leave it out; a variant with another distribution is released like a PolicyVersion",
            )


def refuse_speculation_in(extra_args: Sequence[str]) -> None:
    """ConfigurationError when ``engine.extra_args`` speculate: they reach ``standard`` engines too, unchecked."""
    for argument in extra_args:
        name = argument.split("=", 1)[0].split(".", 1)[0].replace("_", "-")
        abbreviated = name.startswith("--spec") and not name.startswith("--specialize")
        if abbreviated or name.startswith("-sc") or name == "--config":
            raise ConfigurationError(
                f"engine.extra_args must not hold '{argument.split('=', 1)[0]}': it would reach standard engines "
                "too, and could change what is answered",
                hint="use fleet.fast_method, fleet.fast_tokens and fleet.fast_options",
            )

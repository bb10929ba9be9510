"""Nouns with harmless values, for tests that care about one or two of their fields."""

from typing import Any

from core import ids
from core.deployment import Deployment, EngineLoad
from core.episode import Episode
from core.evaluation import Evaluation
from core.policy import Checkpoint, PolicySpan, Probe, ProbePrompt, Provenance
from core.release import Release
from core.statistics.intervals import Interval
from core.task import Task, VerifierSpec, make_task
from core.turn import Timing, Turn
from core.variant import Variant
from core.verdict import Verdict, VerdictStatus


def task(question: str = "2 + 2?", **fields: Any) -> Task:
    """A Task in the domain ``sums``."""
    values: dict[str, Any] = {
        "domain": "sums",
        "split": "train",
        "messages": ({"role": "user", "content": question},),
        "verifiers": (VerifierSpec(name="exact"),),
    }
    return make_task(**(values | fields))


def episode(**fields: Any) -> Episode:
    """A running Episode."""
    values: dict[str, Any] = {"id": ids.new_id(ids.EPISODE), "tenant_id": "ten_a", "policy": "coder"}
    return Episode(**(values | fields))


def turn(**fields: Any) -> Turn:
    """A Turn with three sampled tokens."""
    values: dict[str, Any] = {
        "id": ids.new_id(ids.TURN),
        "episode_id": "ep_a",
        "index": 0,
        "tenant_id": "ten_a",
        "policy": "coder",
        "policy_spans": (PolicySpan(version=1),),
        "variant": Variant.STANDARD,
        "deployment_id": "dep_a",
        "messages": ({"role": "user", "content": "2 + 2?"},),
        "response": {"role": "assistant", "content": "4"},
        "prompt_ids": (1, 2, 3),
        "output_ids": (4, 5, 6),
        "output_logprobs": (-0.1, -1.25, -3.0000001),
        "timing": Timing(started_at=1.0, total_seconds=0.5),
        "request_id": "req_a",
    }
    return Turn(**(values | fields))


def verdict(**fields: Any) -> Verdict:
    """A Verdict that scores 1."""
    values: dict[str, Any] = {
        "id": ids.new_id(ids.VERDICT),
        "episode_id": "ep_a",
        "verifier": "exact",
        "verifier_version": "1",
        "status": VerdictStatus.SCORED,
        "score": 1.0,
        "success": True,
    }
    return Verdict(**(values | fields))


def checkpoint(**fields: Any) -> Checkpoint:
    """A Checkpoint of ``coder@1``."""
    prompt = ProbePrompt(
        token_ids=(1, 2),
        positions=(1,),
        version_logprobs=(-1.0,),
        parent_logprobs=(-2.0,),
        base_logprobs=(-3.0,),
    )
    values: dict[str, Any] = {
        "id": ids.new_id(ids.CHECKPOINT),
        "policy": "coder",
        "version": 1,
        "kind": "lora",
        "path": "/checkpoints/coder-1",
        "checksum": "c" * 64,
        "base_fingerprint": "f" * 64,
        "probe": Probe(prompts=(prompt,) * 8),
        "provenance": Provenance(parent_version=0, code_commit="abc", config={}, packages={}, seed=1, step=1),
    }
    return Checkpoint(**(values | fields))


def release(**fields: Any) -> Release:
    """The Release of ``coder@1`` as a candidate."""
    values: dict[str, Any] = {"id": ids.new_id(ids.RELEASE), "policy": "coder", "version": 1}
    return Release(**(values | fields))


def deployment(**fields: Any) -> Deployment:
    """A starting Deployment of ``smol``."""
    values: dict[str, Any] = {
        "id": ids.new_id(ids.DEPLOYMENT),
        "base": "smol",
        "variant": Variant.STANDARD,
        "engine": "fake",
        "url": "http://127.0.0.1:1",
    }
    return Deployment(**(values | fields))


def load(**fields: Any) -> EngineLoad:
    """An engine with one request."""
    values: dict[str, Any] = {"running": 1, "waiting": 0, "kv_use": 0.1}
    return EngineLoad(**(values | fields))


def evaluation(**fields: Any) -> Evaluation:
    """An Evaluation of ``coder@1`` against the Base."""
    values: dict[str, Any] = {
        "id": ids.new_id(ids.EVALUATION),
        "policy": "coder",
        "version": 1,
        "baseline_version": 0,
        "domain": "sums",
        "temperature": 0.0,
        "tasks": 10,
        "success": 0.8,
        "baseline_success": 0.5,
        "gain": Interval(mean=0.3, low=0.1, high=0.5),
        "reward": 0.8,
        "baseline_reward": 0.5,
    }
    return Evaluation(**(values | fields))

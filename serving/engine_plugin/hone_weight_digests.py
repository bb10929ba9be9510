"""Runs inside a vLLM CPU engine: checksums of weights that the engine repacked.

vLLM's CPU build hands the matrices of linear layers to oneDNN or its own kernels in another layout and empties the
parameter, so that ``/weight_checker`` digests nothing of them. Here the digest of each matrix is taken just before
it is repacked, and given in place of the empty one's. One thread digests while the next matrix is loaded: requests
wait while weights are replaced.

vLLM finds ``register`` as an entry point of the group ``vllm.general_plugins``, as that of ``hone_engine_plugin``.
"""

import hashlib
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

_KEPT = "_hone_weight_digest"
_MOST_WAITING = 4
"""Matrices that are kept in memory until they are digested."""


def register() -> None:
    """Wrap vLLM's repacking and its digests on a CPU; vLLM calls this in every engine process."""
    from vllm.platforms import current_platform  # noqa: PLC0415 - absent outside the engine

    if not current_platform.is_cpu():
        return
    import vllm.model_executor.layers.utils as layers  # noqa: PLC0415
    import vllm.model_executor.model_loader.weight_checksum as checksum  # noqa: PLC0415

    if getattr(layers, "_hone_weight_digests", False):
        return
    layers._hone_weight_digests = True
    repack, digests = layers.dispatch_cpu_unquantized_gemm, checksum.compute_tensor_digests

    thread, waiting = ThreadPoolExecutor(1), deque[Future[str]]()

    def repack_digested(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight.detach()
        repack(layer, remove_weight)
        if weight.is_meta or layer.weight.numel() > 0:
            setattr(layer, _KEPT, None)
            return
        waiting.append(thread.submit(digest, weight))
        setattr(layer, _KEPT, waiting[-1])
        if len(waiting) > _MOST_WAITING:
            waiting.popleft().result()

    def with_repacked(model: Any) -> dict[str, str]:
        return {**digests(model), **repacked_digests(model)}

    layers.dispatch_cpu_unquantized_gemm = repack_digested
    checksum.compute_tensor_digests = with_repacked
    worker = sys.modules.get("vllm.v1.worker.gpu_worker")
    if worker is not None:
        worker.compute_tensor_digests = with_repacked  # type: ignore[attr-defined]


def digest(weight: torch.Tensor) -> str:
    """sha256 of a tensor's bytes, as vLLM takes it."""
    taken = weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(taken.data).hexdigest()


def repacked_digests(model: torch.nn.Module) -> dict[str, str]:
    """Parameter name → digest, for every module whose weight was emptied."""
    return {
        f"{name}.weight": kept.result()
        for name, module in model.named_modules()
        if (kept := getattr(module, _KEPT, None)) is not None
    }

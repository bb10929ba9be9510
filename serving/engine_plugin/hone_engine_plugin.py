"""Runs inside a vLLM CPU engine: LoRA in mixed batches, right and three times as fast; waiting without spinning.

vLLM's torch fallback for LoRA (``vllm.lora.ops.torch_ops``) gathers a copy of the adapter's matrices for every
token, which costs about two thirds of the decode speed of a small model on a CPU, and indexes rows that have
no adapter with -1, which is the last adapter slot: a Base request that shares a batch with an adapter request would
be answered by an adapter. The functions here do the same work with one matrix product per adapter in the
batch, and leave rows without an adapter alone. Signatures are those of the functions that they replace.

A vLLM process that waits for another polls shared memory for a second before it sleeps. On a machine whose few
processors are shared by two engines and a learner, that second is taken from those who work: here it is two
milliseconds, after which vLLM's own notification wakes the process.

vLLM finds ``register`` as an entry point of the group ``vllm.general_plugins``, since the launcher puts this
folder on the engine's PYTHONPATH. Nothing else of Hone is imported here, and nothing of Hone imports this.
"""

from collections.abc import Iterator

import torch

_NO_ADAPTER = -1
_SPIN_SECONDS = 0.002

Rows = slice | torch.Tensor


def register() -> None:
    """Replace the LoRA functions of vLLM's CPU wrapper and its waiting; vLLM calls this in every engine process."""
    from vllm.platforms import current_platform  # noqa: PLC0415 - the engine's own

    if not current_platform.is_cpu():
        return
    import vllm.distributed.device_communicators.shm_broadcast as shared_memory  # noqa: PLC0415 - the engine's own
    import vllm.lora.punica_wrapper.punica_cpu as wrapper  # noqa: PLC0415 - absent outside the engine

    shared_memory.SpinCondition.__init__.__defaults__ = (_SPIN_SECONDS,)

    wrapper.bgmv_shrink = shrink
    wrapper.bgmv_expand = expand
    wrapper.bgmv_expand_slice = expand_slice
    wrapper.sgmv_shrink = _prefill_shrink
    wrapper.sgmv_expand = _prefill_expand
    wrapper.sgmv_expand_slice = _prefill_expand_slice


def shrink(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    slots: torch.Tensor,
    scaling: float = 1.0,
) -> None:
    """output[t] = scaling * A[slots[t]] @ inputs[t]; zero for rows without an adapter.

    inputs (T, in), weights (slots, [1,] rank, in), output (T, >= rank), slots (T,).
    """
    inputs = inputs.to(output.dtype)
    for slot, rows in _groups(slots[: inputs.shape[0]]):
        if slot == _NO_ADAPTER:
            output[rows] = 0
            continue
        matrix = _matrix(weights, slot).to(output.dtype)
        output[rows, : matrix.shape[0]] = torch.nn.functional.linear(inputs[rows], matrix) * scaling


def expand_slice(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    slots: torch.Tensor,
    offset: int,
    size: int,
    add_inputs: bool = True,
) -> None:
    """output[t, offset:offset+size] (+)= B[slots[t]] @ inputs[t]; rows without an adapter add nothing.

    inputs (T, rank), weights (slots, [1,] out, rank), output (T, all outputs), slots (T,).
    """
    inputs = inputs.to(output.dtype)
    for slot, rows in _groups(slots[: inputs.shape[0]]):
        if slot == _NO_ADAPTER:
            if not add_inputs:
                output[rows, offset : offset + size] = 0
            continue
        matrix = _matrix(weights, slot).to(output.dtype)
        product = torch.nn.functional.linear(inputs[rows], matrix)[:, :size]
        end = offset + product.shape[1]
        if add_inputs:
            output[rows, offset:end] += product
        else:
            output[rows, offset:end] = product


def expand(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    slots: torch.Tensor,
    add_inputs: bool = True,
) -> None:
    """As ``expand_slice`` over the whole width; an adapter may be padded wider than the model's output."""
    expand_slice(inputs, weights, output, slots, 0, output.shape[1], add_inputs)


def _prefill_shrink(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    _starts: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    _batches: int,
    _longest: int,
    _tokens: int,
    scaling: float,
) -> None:
    shrink(inputs, weights, output, torch.repeat_interleave(slots, lengths), scaling)


def _prefill_expand(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    _starts: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    _batches: int,
    _longest: int,
    _tokens: int,
    add_inputs: bool = False,
) -> None:
    expand(inputs, weights, output, torch.repeat_interleave(slots, lengths), add_inputs)


def _prefill_expand_slice(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    _starts: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    _batches: int,
    _longest: int,
    _tokens: int,
    offset: int,
    size: int,
    add_inputs: bool = False,
) -> None:
    expand_slice(inputs, weights, output, torch.repeat_interleave(slots, lengths), offset, size, add_inputs)


def _matrix(weights: torch.Tensor, slot: int) -> torch.Tensor:
    chosen = weights[slot]
    return chosen[0] if chosen.dim() == 3 else chosen


def _groups(slots: torch.Tensor) -> Iterator[tuple[int, Rows]]:
    """Each adapter slot of the batch with its rows; a slice where all rows share one, which copies nothing."""
    listed = slots.tolist()
    present = set(listed)
    if len(present) == 1:
        yield listed[0], slice(0, len(listed))
        return
    for slot in present:
        yield slot, torch.tensor([row for row, value in enumerate(listed) if value == slot])

"""Runs in the engine's environment on a GPU of its own: broadcasts a folder's tensors to vLLM workers over NCCL.

``serving.weights.nccl_wire.SenderProcess`` starts it and speaks to it in JSON lines: ``join`` opens a group with
the workers of one engine, ``send`` broadcasts every tensor of a folder in the order of their names, in vLLM's packed
form. Not run on GPUs yet: written from vLLM 0.32's ``distributed/weight_transfer``, whose own functions do the work.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

_PACKED_BYTES = 1 << 30
_PACKED_BUFFERS = 2


def main() -> None:
    """Answer commands until the input ends."""
    groups: dict[str, Any] = {}
    # Libraries write to the standard output; the answers must stay alone there.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            obey(json.loads(line), groups)
            answer: dict[str, Any] = {"ok": True}
        except Exception as error:  # noqa: BLE001 - whatever failed, the other side must hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def obey(command: dict[str, Any], groups: dict[str, Any]) -> None:
    """Carry out one command; ``groups``: engine → its NCCL communicator."""
    from vllm.distributed.weight_transfer.nccl_common import trainer_init  # noqa: PLC0415 - absent outside the engine
    from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer  # noqa: PLC0415

    engine = command["engine"]
    if command["do"] == "join":
        earlier = groups.pop(engine, None)
        if earlier is not None:
            earlier.destroy()
        groups[engine] = trainer_init(
            {
                "master_address": command["address"],
                "master_port": command["port"],
                "world_size": command["world_size"],
            }
        )
        return
    packed_nccl_broadcast_producer(
        iterator=tensors(Path(command["path"])),
        group=groups[engine],
        src=0,
        post_iter_func=lambda item: item[1],
        buffer_size_bytes=_PACKED_BYTES,
        num_buffers=_PACKED_BUFFERS,
    )


def tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Name and tensor on this process's GPU, in the order of the names."""
    device = torch.accelerator.current_accelerator()
    files: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            files |= dict.fromkeys(opened.keys(), file)
    for name in sorted(files):
        with safe_open(files[name], framework="pt") as opened:
            yield name, opened.get_tensor(name).to(device)


if __name__ == "__main__":
    main()

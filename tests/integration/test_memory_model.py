"""What ``hone train --dry-run`` says of memory, held against what training takes."""

import asyncio
import json
import sys
from pathlib import Path

from core.config.learner import LearnerSection
from learner.estimate.memory import estimate_memory
from learner.estimate.model_shape import read_model_shape

LAYOUTS = [
    {"micro_batch_tokens": 1536},
    {"micro_batch_tokens": 1536, "gradient_checkpointing": True},
    {"micro_batch_tokens": 1536, "train": "full", "zero_stage": 1},
]
FACTOR = 1.6


async def test_estimated_memory_is_that_of_training_within_a_factor(tmp_path) -> None:
    """Adapter, gradient checkpointing, and full weights with ZeRO: each peak is within a factor of the estimate."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("memory_probe.py")),
        str(tmp_path),
        json.dumps(LAYOUTS),
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "1",
            "MALLOC_MMAP_THRESHOLD_": "65536",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()[-4000:]
    shape = read_model_shape(tmp_path)
    for measured, changes in zip(json.loads(stdout.decode().splitlines()[-1]), LAYOUTS, strict=True):
        found = estimate_memory(shape, LearnerSection.model_validate(changes), ranks=1, device="cpu")
        # The probe counts living tensors only, and nothing that was there before; it asks no Base.
        living = found.total - found.runtime - found.allocator - found.base_copy
        assert measured / FACTOR <= living <= measured * FACTOR, (changes, measured, found)

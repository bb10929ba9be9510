"""The fresh adapter that both sides begin with: ``python -m bench.learner.adapter BASE FOLDER``."""

import sys
from pathlib import Path

import torch

from bench.learner.plan import LORA
from core.config.learner import LoraSection
from learner.policy_model import build_policy_model


def main() -> None:
    """Write it."""
    base, folder = sys.argv[1:3]
    model = build_policy_model(
        Path(base), lora=LoraSection.model_validate(LORA), adapter=None, device=torch.device("cpu"), seed=0
    )
    model.export_adapter(Path(folder))


if __name__ == "__main__":
    main()

"""GRPO and SFT on DeepSpeed: from recorded Episodes to published PolicyVersions."""

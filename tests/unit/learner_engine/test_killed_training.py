"""A training process that is killed at any point is gone on from, to the very numbers of one that was not."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from learner.storage import new_folder, remove_drafts, remove_folder
from learner.trainer import TrainerSpec

PROJECT = Path(__file__).parents[3]
POINTS = 8


@pytest.mark.timeout(400)
@pytest.mark.parametrize("settings", [{"zero_stage": 2, "train": "full"}])
def test_killed_runs_resume_exactly(base_path, config, make_samples, tmp_path, settings) -> None:
    """Whatever the moment of SIGKILL: no half state is visible, the next losses are equal, and no draft stays."""
    schedule = {"schedule": "linear", "warmup_steps": 2, "decay_steps": 20, "updates_per_batch": 2}
    spec = TrainerSpec(
        config=config.model_copy(update=settings | schedule),
        base_path=base_path,
        adapter=None,
        learning_rate=1e-3,
        seed=5,
    )
    torch.save((spec, [make_samples(4, seed=seed) for seed in range(6)]), tmp_path / "input.pt")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killed_training.py")), str(tmp_path)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout[done.stdout.index('{"whole"') :])
    assert len({loss for loss, _ in found["whole"]}) == len(found["whole"]) == 4
    assert len(found["points"]) == POINTS
    for name, point in found["points"].items():
        assert set(point["killed"]) == {signal.SIGKILL}, name
        assert point["ended"] == 0, f"{name}: {done.stderr}"
        assert point["steps"] == found["whole"], name
        assert point["left"] == ["step-000003", "step-000004"], name
        assert point["visible"][:2] == ["step-000001", "step-000002"] or name == "while_old_states_go", name


def test_a_name_is_gone_before_its_files_are(tmp_path, monkeypatch) -> None:
    """Removing renames first, so that a half-removed folder has no name that anybody looks for; drafts are swept."""
    with new_folder(tmp_path / "state") as draft:
        (draft / "part").write_text("x")
    with monkeypatch.context() as patched:
        patched.setattr("learner.storage.shutil.rmtree", lambda *_, **__: None)
        remove_folder(tmp_path / "state")
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".state")
    remove_drafts(tmp_path, older_than_seconds=3600.0)
    assert list(tmp_path.iterdir()) == [left]
    remove_drafts(tmp_path)
    assert list(tmp_path.iterdir()) == []
    remove_folder(tmp_path / "state")

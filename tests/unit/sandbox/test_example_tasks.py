"""The example Tasks are what the documentation says: a folder that imports as it stands."""

from pathlib import Path

from sandbox.task_folder import load_task_folder

EXAMPLES = Path(__file__).parents[3] / "examples" / "tasks"


def test_the_example_folder_loads():
    """Every example Task loads, and files beside a Task come with it."""
    tasks = {task.domain: task for task in load_task_folder(EXAMPLES)}
    assert set(tasks) == {"geography", "files"}
    assert tasks["files"].files == {"numbers.txt": "12\n13\n17\n"}

"""Tasks on disk."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import TaskError
from core.task import VerifierSpec, make_task
from sandbox.domains.registry import domain_sources
from sandbox.task_folder import dump_task_folder, load_task_folder

GOOD = """
domain = "mine"
system = "Be brief."
prompt = "2 + 2?"
tools = ["python"]
demonstration = "4"
files = { "a.txt" = "hello" }

[[verifiers]]
name = "exact"
options = { expected = "4" }

[limits]
max_turns = 3
"""


def test_a_good_folder_loads(tmp_path):
    """TOML, JSON, nested folders and files beside a Task are read."""
    (tmp_path / "one.toml").write_text(GOOD)
    (tmp_path / "one.files" / "data").mkdir(parents=True)
    (tmp_path / "one.files" / "data" / "b.json").write_text("{}")
    (tmp_path / "deep").mkdir()
    verifiers = [{"name": "exact", "options": {"expected": "x"}}]
    content = {"domain": "mine", "split": "heldout", "prompt": "x?", "verifiers": verifiers}
    (tmp_path / "deep" / "two.json").write_text(json.dumps(content))
    (tmp_path / "README.md").write_text("not a Task")
    two, one = load_task_folder(tmp_path)
    assert one.files == {"a.txt": "hello", "data/b.json": "{}"}
    assert one.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"})
    assert one.tools[0].name == "python" and one.limits.max_turns == 3 and one.demonstration == "4"
    assert two.split == "heldout"


BAD = {
    "syntax.toml": ("domain = ", ["not valid TOML"]),
    "syntax.json": ("{", ["not valid JSON"]),
    "list.json": ("[]", ["not a table"]),
    "empty.json": ("{}", ["domain", "verifiers"]),
    "typo.toml": (GOOD + "\nmax_trns = 1\n", ["limits.max_trns: unknown key"]),
    "verifier.toml": (GOOD.replace('"exact"', '"exactly"'), ["no verifier 'exactly'"]),
    "options.toml": (GOOD.replace("expected", "expcted"), ["expected: Field required", "expcted"]),
    "tool.toml": (GOOD.replace('["python"]', '["pyhton", "shell"]'), ["pyhton"]),
    "both.toml": (GOOD.replace('system = "Be brief."', 'messages = [{role="user",content="x"}]'), ["either"]),
    "role.json": (
        '{"domain":"d","messages":[{"text":"x"}],"verifiers":[{"name":"exact"}]}',
        [
            "role",
        ],
    ),
    "split.toml": (GOOD.replace('domain = "mine"', 'domain = "mine"\nsplit = "test"'), ["split"]),
    "escape.toml": (GOOD.replace('"a.txt"', '"../a.txt"'), ["leads out"]),
}


def test_all_faults_of_all_files_are_reported_at_once(tmp_path):
    """One TaskError names every file with every fault, and good files are not blamed."""
    (tmp_path / "good.toml").write_text(GOOD.replace("2 + 2?", "3 + 1?"))
    for name, (text, _) in BAD.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "copy1.toml").write_text(GOOD)
    (tmp_path / "copy2.toml").write_text(GOOD)
    (tmp_path / "link.toml").write_text(GOOD.replace("2 + 2?", "link?"))
    (tmp_path / "link.files").mkdir()
    (tmp_path / "link.files" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(TaskError) as caught:
        load_task_folder(tmp_path)
    lines = caught.value.message.splitlines()
    for name, (_, words) in BAD.items():
        own = " ".join(line for line in lines if line.startswith(f"{name}: "))
        assert all(word in own for word in words), (name, lines)
    text = caught.value.message
    assert "binary.toml: not UTF-8" in text and "copy2.toml: the same Task as copy1.toml" in text
    assert "link.toml: link.files/passwd: is a symbolic link" in text
    assert "good.toml" not in text


def test_a_missing_or_empty_folder_is_an_error(tmp_path):
    """Nothing to load is said, not passed over."""
    with pytest.raises(TaskError, match="not a folder"):
        load_task_folder(tmp_path / "nowhere")
    with pytest.raises(TaskError, match=r"no \.toml"):
        load_task_folder(tmp_path)


def test_generated_tasks_survive_the_disk(tmp_path):
    """What is dumped loads as the same Tasks with the same ids."""
    tasks = [task for source in domain_sources() for task in source.generate("train", 3, 0)]
    dump_task_folder(tasks, tmp_path)
    assert sorted(load_task_folder(tmp_path), key=lambda t: t.id) == sorted(tasks, key=lambda t: t.id)


@given(
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.dictionaries(
        st.from_regex(r"[a-z]{1,5}(/[a-z]{1,5})?\.(txt|json|toml)", fullmatch=True),
        st.text(st.characters(codec="utf-8"), max_size=20),
        max_size=2,
    ),
)
def test_any_text_survives_the_disk(tmp_path_factory, text, files):
    """Prompts and files of any Unicode text come back as they were."""
    if len({path.split("/")[0] for path in files}) < len(files):
        return  # a name cannot be a file and a folder
    task = make_task(
        domain="d",
        split="train",
        messages=({"role": "user", "content": text},),
        verifiers=(VerifierSpec(name="exact", options={"expected": text or "x"}),),
        files=files,
    )
    folder = tmp_path_factory.mktemp("tasks")
    dump_task_folder([task], folder)
    assert load_task_folder(folder) == [task]

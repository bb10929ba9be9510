"""The program ``llm`` and its library, with the gateway as an extra OpenAI model."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scenarios import QUESTION, Calls, Place, run

PROGRAM = Path(sys.executable).parent / "llm"
SHORT = ("-o", "max_tokens", "12", "-o", "temperature", "0")


def configured(place: Place, folder: str) -> dict[str, str]:
    """Settings of llm with one model and one key, both called ``hone``, and the environment that points there."""
    entry = {
        "model_id": "hone",
        "model_name": place.model,
        "api_base": place.base_url,
        "api_key_name": "hone",
        "supports_schema": True,
        "supports_tools": True,
    }
    # JSON is YAML.
    Path(folder, "extra-openai-models.yaml").write_text(json.dumps([entry]))
    Path(folder, "keys.json").write_text(json.dumps({"hone": place.key}))
    return os.environ | {"LLM_USER_PATH": folder}


def llm(place: Place, folder: str, *arguments: str) -> str:
    done = subprocess.run(
        [PROGRAM, *arguments], env=configured(place, folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def prompt(place: Place) -> Calls:
    with tempfile.TemporaryDirectory() as folder:
        assert llm(place, folder, "-m", "hone", *SHORT, QUESTION).strip()
    return Calls(1)


def conversation(place: Place) -> Calls:
    with tempfile.TemporaryDirectory() as folder:
        llm(place, folder, "-m", "hone", "--no-stream", *SHORT, "Hello")
        llm(place, folder, "-c", *SHORT, QUESTION)
        logged = json.loads(llm(place, folder, "logs", "--json", "-n", "0"))
    assert len(logged) == 2 and len({entry["conversation_id"] for entry in logged}) == 1
    return Calls(2)


def schema(place: Place) -> Calls:
    wanted = json.dumps({"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]})
    with tempfile.TemporaryDirectory() as folder:
        said = llm(place, folder, "-m", "hone", "--schema", wanted, QUESTION)
    assert isinstance(json.loads(said)["wet"], bool)
    return Calls(1)


def library(place: Place) -> Calls:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(configured(place, folder))
        import llm as library_module

        model = library_module.get_model("hone")
        pieces = list(model.prompt(QUESTION, max_tokens=12, temperature=0))
    assert len(pieces) > 4 and "".join(pieces)
    return Calls(1)


if __name__ == "__main__":
    run("llm", prompt, conversation, schema, library)

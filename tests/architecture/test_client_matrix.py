"""The client matrix is one thing: scripts, their list, the results of a run, and the document."""

import ast
import json
import re

import pytest

from tests.client_matrix import CLIENTS, DOCUMENT, FOLDER, RESULTS, Client, document


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.script)
def test_every_scenario_of_a_script_is_in_the_matrix(client: Client):
    """No scenario is written and never looked at, and none is listed that nobody wrote."""
    text = (FOLDER / client.script).read_text()
    if client.script.endswith(".mjs"):
        written = re.findall(r"^  async (\w+)\(client", text, re.MULTILINE)
    else:
        functions = [
            node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        written = [node.name for node in functions if node.returns and ast.unparse(node.returns) == "Calls"]
    assert sorted(written) == sorted(client.scenarios)


def test_the_document_shows_the_last_run():
    """docs/clients.md is what `make clients` writes, and everything in it works."""
    results = json.loads(RESULTS.read_text())
    assert DOCUMENT.read_text() == document(DOCUMENT.read_text(), results)
    assert {entry["result"] for client in results["clients"].values() for entry in client["scenarios"].values()} == {
        "works"
    }

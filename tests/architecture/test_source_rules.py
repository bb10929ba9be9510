"""Rules that no linter knows: sizes, imports in functions, the environment, silent handlers, state at import."""

import ast

from source_tree import PACKAGES, functions, relative, source_files, tree_of

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
# The agent runs inside a box, alone with the standard library, and clears its environment.
ENVIRONMENT_READERS = {"core/config/load.py", "sandbox/runtimes/inside/agent.py"}
# Heavy optional libraries may be imported inside the one adapter that owns them.
LAZY_IMPORTS_ALLOWED = {
    "deepspeed",
    "torch",
    "transformers",
    "peft",
    "reasoning_gym",
    "redis",
    "asyncpg",
    "gguf",
    "presidio_analyzer",
    "tldextract",
    "huggingface_hub",
    "vllm",
    "litellm",
    "mcp",
}


def test_files_and_functions_stay_readable():
    """No file is longer than 500 lines and no function longer than 80."""
    long_files = [relative(p) for p in source_files() if len(p.read_text().splitlines()) > MAX_FILE_LINES]
    long_functions = [
        f"{relative(path)}:{node.name}"
        for path in source_files()
        for node in functions(path)
        if (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long_files == []
    assert long_functions == []


def test_no_import_hides_inside_a_function():
    """Our own modules are imported at the top of a file, so that a cycle cannot hide."""
    hidden = []
    for path in source_files():
        for function in functions(path):
            for node in ast.walk(function):
                for name in _imported(node):
                    top = name.split(".")[0]
                    if top in PACKAGES or top not in LAZY_IMPORTS_ALLOWED:
                        hidden.append(f"{relative(path)}:{function.name} imports {name}")
    assert hidden == []


def test_the_environment_is_read_in_one_place():
    """Only the configuration loader reads environment variables."""
    readers = set()
    for path in source_files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"}:
                readers.add(relative(path))
    assert readers <= ENVIRONMENT_READERS


def test_no_handler_swallows_an_error():
    """An except block does something: it raises, logs, counts, or returns what the error means."""
    silent = []
    for path in source_files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(s, ast.Pass) for s in node.body):
                silent.append(f"{relative(path)}:{node.lineno}")
    assert silent == []


def test_everything_is_annotated():
    """Arguments and returns are typed throughout."""
    bare = []
    for path in source_files():
        for function in functions(path):
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            untyped = [a.arg for a in arguments if a.annotation is None and a.arg not in {"self", "cls"}]
            if untyped or function.returns is None:
                bare.append(f"{relative(path)}:{function.name} {untyped}")
    assert bare == []


def test_public_things_say_what_they_are_for():
    """Modules, public classes and public functions have a docstring."""
    mute = []
    for path in source_files():
        module = tree_of(path)
        if ast.get_docstring(module) is None and path.read_text().strip():
            mute.append(relative(path))
        for node in module.body:
            named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if named and not node.name.startswith("_") and ast.get_docstring(node) is None:
                mute.append(f"{relative(path)}:{node.name}")
    assert mute == []


def test_no_mutable_state_at_module_level():
    """Module-level names hold constants: a mutable literal is written in capitals and never assigned to again."""
    mutable = []
    for path in source_files():
        for node in tree_of(path).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                is_literal = isinstance(node.value, ast.List | ast.Dict | ast.Set)
                if is_literal and isinstance(target, ast.Name) and target.id.upper() != target.id:
                    mutable.append(f"{relative(path)}:{target.id}")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Global):
                mutable.append(f"{relative(path)}: global {node.names}")
    assert mutable == []


def _imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []

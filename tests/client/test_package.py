"""The client needs only Python 3.9 or later."""

import ast
import sys
from pathlib import Path

import paceline_client
import pytest

PACKAGE = Path(paceline_client.__file__).parent
# Imported inside functions, where installed.
FRAMEWORKS = {"torch", "megatron", "transformers", "lightning", "pytorch_lightning", "pandas"}
MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_parses_as_python_3_9_and_imports_only_stdlib(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    at_import = {node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        found = {name.partition(".")[0] for name in names}
        allowed = sys.stdlib_module_names if node in at_import else {
            *sys.stdlib_module_names, *FRAMEWORKS, "paceline_client"
        }  # fmt: skip
        if "integrations" in path.parts and node not in at_import:
            continue
        assert found <= {*allowed, "paceline_client"}, f"{path.name} imports {found}"


def test_importing_the_client_loads_only_the_standard_library():
    import subprocess

    code = (
        "import sys; before = {*sys.modules}\n"
        "import paceline_client, paceline_client.query, paceline_client.webhook\n"
        "loaded = {name.partition('.')[0] for name in {*sys.modules} - before}\n"
        "print(loaded - {*sys.stdlib_module_names, 'paceline_client'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "set()\n"

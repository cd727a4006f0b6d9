"""Each row of the fault matrix has existing tests or a reason."""

import ast
from pathlib import Path

import pytest

from tests.faults.matrix import OWN_FAULTS, REASONS, TESTS

ROOT = Path(__file__).parents[2]
NUM_ROWS = 57


def test_every_row_has_either_tests_or_a_reason():
    assert sorted([*TESTS, *REASONS]) == list(range(1, NUM_ROWS + 1))


LISTED = {each for tests in (*TESTS.values(), *OWN_FAULTS.values()) for each in tests}


@pytest.mark.parametrize("test_id", sorted(LISTED))
def test_named_test_exists(test_id):
    path, _, name = test_id.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert name in {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_row_test_of_this_folder_is_in_the_matrix():
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_row_"):
                assert f"tests/faults/{path.name}::{node.name}" in LISTED

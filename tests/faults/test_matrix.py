"""Each row of the fault matrix has existing tests or a reason."""

import ast
from pathlib import Path

from tests.faults.matrix import OWN_FAULTS, REASONS, TESTS

ROOT = Path(__file__).parents[2]
NUM_ROWS = 57


def test_every_row_has_either_tests_or_a_reason():
    assert sorted([*TESTS, *REASONS]) == list(range(1, NUM_ROWS + 1))


LISTED = {each for tests in (*TESTS.values(), *OWN_FAULTS.values()) for each in tests}


def functions_of(path):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse((ROOT / path).read_text())
    return {f"{path}::{node.name}" for node in tree.body if isinstance(node, kinds)}


def test_named_tests_exist():
    found = {path: functions_of(path) for path in {each.partition("::")[0] for each in LISTED}}
    assert sorted(each for each in LISTED if each not in found[each.partition("::")[0]]) == []


def test_every_row_test_of_this_folder_is_in_the_matrix():
    paths = (path.relative_to(ROOT) for path in Path(__file__).parent.glob("test_*.py"))
    found = {each for path in paths for each in functions_of(path)}
    assert {each for each in found if "::test_row_" in each} <= LISTED

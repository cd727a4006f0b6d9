"""Each row of the fault matrix has existing tests or a reason."""

import ast
import re
from pathlib import Path

from tests.faults.matrix import NAMED_BY_ROW, OWN_FAULTS, REASONS, TESTS

ROOT = Path(__file__).parents[2]
NUM_ROWS = 57


def functions_of(path):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {
        node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, kinds)
    }


def test_every_row_has_either_tests_or_a_reason():
    paths = (path for pattern in NAMED_BY_ROW for path in ROOT.glob(pattern))
    names = (name for path in paths for name in functions_of(path))
    of_names = [re.match(r"test_row_(\d\d)(?:_and_(\d\d))?_", name) for name in names]
    named = {int(row) for found in of_names if found for row in found.groups() if row}
    assert sorted({*named, *TESTS} | REASONS.keys()) == list(range(1, NUM_ROWS + 1))
    assert not REASONS.keys() & {*named, *TESTS}


def test_named_tests_exist():
    listed = {each for tests in (*TESTS.values(), *OWN_FAULTS.values()) for each in tests}
    split = [each.partition("::") for each in sorted(listed)]
    found = {path: functions_of(path) for path, _, _ in split}
    assert [f"{path}::{name}" for path, _, name in split if name not in found[path]] == []

"""Docstrings of packages name the first file to read and the importing packages.

`Imported by: api, cli.` lists the top-level packages of `app` and, for a subpackage, its own
top-level package if other parts of it import it; `nothing` if there is none.
"""

import ast
import re
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
ROOTS = {"app": ROOT, "paceline_client": ROOT / "client"}
USAGE_EXAMPLE = "\nfrom "  # ends the text


@cache
def import_graph():
    return grimp.build_graph(*ROOTS, cache_dir=None)


def folder(package):
    return ROOTS[package.partition(".")[0]].joinpath(*package.split("."))


def packages():
    for name, root in ROOTS.items():
        for path in sorted((root / name).rglob("__init__.py")):
            yield ".".join(path.parent.relative_to(root).parts)


def docstring(package):
    found = ast.get_docstring(ast.parse((folder(package) / "__init__.py").read_text()))
    return (found or "").partition(USAGE_EXAMPLE)[0]


def top_level(module):
    root, _, rest = module.partition(".")
    return rest.partition(".")[0] or root if root == "app" else root


def importers(package):
    graph = import_graph()
    own = {package} | graph.find_descendants(package)
    modules = set().union(*(graph.find_modules_that_directly_import(each) for each in own))
    return sorted({top_level(module) for module in modules - own})


every_package = pytest.mark.parametrize("package", [*packages()])


@every_package
def test_file_to_read_first_exists(package):
    found = re.search(r"Read `([\w/]+\.py)` first", " ".join(docstring(package).split()))
    assert found is not None
    assert (folder(package) / found[1]).is_file()


@every_package
def test_named_importers_are_the_real_ones(package):
    found = re.findall(r"^Imported by: ([\w, \n]+)\.$", docstring(package), re.MULTILINE)
    assert len(found) == 1
    assert re.split(r",\s", found[0]) == (importers(package) or ["nothing"])

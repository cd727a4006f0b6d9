"""Checks the layout that CONTRIBUTING.md promises: sizes, names, import circles (`make lint`).

Totals are not checked: a project may grow. What is checked keeps each part easy to enter.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = {"app": ROOT / "app", "paceline_client": ROOT / "client" / "paceline_client"}
MAX_MODULE_LINES = 700
MAX_PYTHON_FILES = 25  # of a folder, besides its __init__
MAX_JAVASCRIPT_FILES = 30
MAX_README_LINES = 160

# One file a kind, where two kinds may well share a class name: a detector and the fault it finds.
FAMILIES = frozenset(
    ("detectors", "faults", "formats", "readers", "readings", "rules", "schedules")
)
# Names that tell a reader nothing about what the file holds.
VAGUE_NAMES = frozenset(
    (
        *("books", "chosen", "comings", "course", "deeds", "desk", "fit", "happened", "heard"),
        *("in_force", "kept", "look", "mark", "measured", "night", "noted", "nowhere", "parts"),
        *("past", "people", "places", "portion", "remembering", "roll", "rung", "scene", "spot"),
        *("standings", "telling", "told", "trouble", "usual", "views", "worst"),
    )
)


# Where a cause's name may be written out: in its row, its detector, its confidences, made faults.
CAUSES = "app/result/causes.py"
NAMES_CAUSES = (
    CAUSES,
    "app/diagnosis/detectors/",
    "app/diagnosis/calibration_table.py",
    "app/synth/",
)
# Also an op type, and what an alert rule may be on.
OTHER_MEANING = {"gc-pause", "silent-worker"}


def main() -> int:
    """Print every broken rule; 1 if there is one."""
    broken = [
        *large_modules(),
        *full_folders("*.py", MAX_PYTHON_FILES, [*PACKAGES.values(), ROOT / "benchmarks"]),
        *full_folders("*.js", MAX_JAVASCRIPT_FILES, [ROOT / "frontend"]),
        *vague_names(),
        *classes_named_twice(),
        *causes_as_literals(),
        *import_circles(),
    ]
    for line in broken:
        print(line)  # noqa: T201
    return 1 if broken else 0


def modules() -> Iterator[Path]:
    """Every Python file of the product and of the client."""
    for folder in PACKAGES.values():
        yield from sorted(folder.rglob("*.py"))


def large_modules() -> Iterator[str]:
    """Files that hold more than one idea can."""
    for path in modules():
        num_lines = path.read_text().count("\n")
        if num_lines > MAX_MODULE_LINES:
            yield f"{shown(path)}: {num_lines} lines, at most {MAX_MODULE_LINES}: split it"
    num_lines = (ROOT / "README.md").read_text().count("\n")
    if num_lines > MAX_README_LINES:
        yield f"README.md: {num_lines} lines, at most {MAX_README_LINES}: move text to docs/"


def full_folders(pattern: str, limit: int, roots: list[Path]) -> Iterator[str]:
    """Folders that need a second level."""
    counts: dict[Path, int] = defaultdict(int)
    for root in roots:
        for path in root.rglob(pattern):
            counts[path.parent] += path.name != "__init__.py"
    for folder, count in sorted(counts.items()):
        if count > limit:
            yield f"{shown(folder)}: {count} files, at most {limit}: give it a second level"


def vague_names() -> Iterator[str]:
    """Files whose name does not say what they hold."""
    for path in [*modules(), *(ROOT / "frontend" / "js").rglob("*.js")]:
        if path.stem in VAGUE_NAMES:
            yield f"{shown(path)}: the name says nothing: use the field's noun"


def classes_named_twice() -> Iterator[str]:
    """Public classes of `app` with one name and two meanings."""
    defined: dict[str, set[Path]] = defaultdict(set)
    for path in PACKAGES["app"].rglob("*.py"):
        if not FAMILIES & set(path.parts):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined[node.name].add(path)
    for name, paths in sorted(defined.items()):
        if len(paths) > 1:
            yield f"class {name}: defined in " + ", ".join(sorted(map(shown, paths)))


def causes_as_literals() -> Iterator[str]:
    """Names of causes that are written out where a constant of the table should stand."""
    rows = ast.parse((ROOT / CAUSES).read_text())
    names = {
        node.value.value
        for node in rows.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    } - OTHER_MEANING
    for path in sorted((ROOT / "app").rglob("*.py")):
        if shown(path).startswith(NAMES_CAUSES):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in names:
                yield f"{shown(path)}:{node.lineno}: {node.value!r}: use its constant in {CAUSES}"


def import_circles() -> Iterator[str]:
    """One circle of imports per package, if any; imports in functions and for types count too."""
    for package in PACKAGES:
        graph = grimp.build_graph(package, cache_dir=None)
        imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
        circle = first_circle(imports)
        if circle:
            yield "import circle: " + " -> ".join(circle)


def first_circle(imports: Mapping[str, Set[str]]) -> list[str]:
    """A path of imports that comes back to its start; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return []


def shown(path: Path) -> str:
    """The path as a reader names it."""
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())

"""The benchmark `planted`: its list fits the code, and a planted fault leaves no trace."""

import ast
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.planted import (
    ROOT,
    Fault,
    Result,
    ResultLog,
    RunningTests,
    fault_in_place,
    read_faults,
    summary,
)

FAULTS = read_faults()
APP = ROOT / "app"


def sources_of(source: str, function: str) -> list[str]:
    """The text of every function of this qualified name."""
    *owners, name = function.split(".")
    nodes: list[ast.AST] = [ast.parse(source)]
    for owner in owners:
        nodes = [
            child
            for node in nodes
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.ClassDef) and child.name == owner
        ]
    return [
        ast.get_source_segment(source, child, padded=True) or ""
        for node in nodes
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name
    ]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_the_list_fits_the_code(fault):
    source = (APP / fault.file).read_text()
    assert source.count(fault.old) == 1
    assert fault.old != fault.new
    assert any(fault.old.strip() in text for text in sources_of(source, fault.function))
    ast.parse(source.replace(fault.old, fault.new))
    assert [*ROOT.glob(fault.tests)]


def test_every_package_has_at_least_two_faults_under_names_of_their_own():
    packages = {path.parent.name for path in APP.glob("*/__init__.py")}
    number = Counter(Path(fault.file).parts[0] for fault in FAULTS)
    assert {name for name in packages if number[name] < 2} == set()
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60


def planted_in(folder: Path) -> tuple[Fault, Path]:
    path = folder / "app" / "part.py"
    path.parent.mkdir()
    path.write_text("@kernel\ndef one(): return 1\n")
    os.utime(path, ns=(0, 1_234_567_890))
    return Fault("part.py", "one", "it is two", "tests", "return 1", "return 2"), path


def test_a_planted_file_is_restored_with_its_time_and_its_kernels(tmp_path):
    fault, path = planted_in(tmp_path)
    cache = path.parent / "__pycache__"
    cache.mkdir()
    (cache / "one.nbi").write_text("sound")
    with fault_in_place(tmp_path, fault):
        assert "return 2" in path.read_text()
        (cache / "one.nbi").write_text("faulty")
        (cache / "two.nbc").write_text("faulty")
    assert "return 1" in path.read_text()
    assert path.stat().st_mtime_ns == 1_234_567_890
    assert {path.name: path.read_text() for path in cache.iterdir()} == {"one.nbi": "sound"}


def test_a_later_run_of_the_same_commit_knows_the_results(tmp_path):
    fault, kept = FAULTS[0], tmp_path / "results.jsonl"
    ResultLog("one", kept).add(Result("one", fault.name, fault.tests, "missed", 1.5))
    assert summary("one", [fault], ResultLog("one", kept))["not_found"] == [fault.name]
    assert not ResultLog("other", kept).known
    log = ResultLog("one", kept)
    log.add(Result("one", fault.name, "tests/advice", "found", 2.5))
    assert summary("one", [fault], log)["total"] == {"found": 1}


def test_stopped_runs_end_with_what_they_have_started_and_no_others_begin(tmp_path):
    alive, runs = tmp_path / "alive", RunningTests()
    os.mkfifo(alive)
    (tmp_path / "test_endless.py").write_text(
        "import signal, subprocess\n"
        "def test_endless():\n"
        f"    with open({str(alive)!r}, 'w') as alive:\n"
        "        subprocess.Popen(['sh', '-c', 'echo started; exec sleep 600'], stdout=alive)\n"
        "    signal.pause()\n"
    )
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(runs.run, tmp_path, ["test_endless.py"], 60.0)
        with alive.open() as started:
            assert started.readline() == "started\n"
            runs.stop()
            assert started.read() == ""  # once no process has it open
        assert run.result()[0] == -signal.SIGKILL
    assert runs.run(tmp_path, ["test_endless.py"], 60.0) == (-signal.SIGKILL, "")

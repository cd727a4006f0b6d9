"""The script of docs/feeds/kineto.md, run with a profiler that writes down what it is asked."""

import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from app.cli.importing.options import import_options
from tests.trace.readers.kineto.test_kineto_import import KINETO, event, steps, write
from tests.trace.readers.samples import imported

PAGE = (Path(__file__).parents[4] / "docs" / "feeds" / "kineto.md").read_text()


class Profiler:
    """Traces as PyTorch's does, of which only the names of annotations count here."""

    def __init__(self, folder):
        self.folder = folder
        self.names = []
        self.written = []

    @contextmanager
    def profile(self, *, schedule, on_trace_ready):
        self.step = lambda: None
        yield self
        assert schedule["repeat"] == 1
        on_trace_ready(self)

    @contextmanager
    def record_function(self, name):
        self.names.append(name)
        yield

    def export_chrome_trace(self, name):
        self.written.append(name)
        spans = [event(each, 3100 + at, 1) for at, each in enumerate(self.names)]
        path = write(self.folder, [*steps(3), *spans])
        path.rename(self.folder / name.removesuffix(".gz"))


def of_torch(profiler):
    """PyTorch's module of this name."""
    found = ModuleType("torch.profiler")
    vars(found).update(
        profile=profiler.profile,
        record_function=profiler.record_function,
        schedule=lambda **given: given,
    )
    return found


def nothing(*_):
    return SimpleNamespace(backward=nothing)


@pytest.mark.parametrize("rank", ["0", "3"])
def test_documented_kineto_annotations_can_be_imported(rank, tmp_path, monkeypatch):
    profiler = Profiler(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "torch.profiler", of_torch(profiler))
    monkeypatch.setitem(os.environ, "RANK", rank)
    [script] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    optimizer = SimpleNamespace(step=nothing, zero_grad=nothing)
    exec(script, {"loader": [[1, 2]], "model": nothing, "optimizer": optimizer})
    assert profiler.names == ["fwd 0", "bwd 0", "fwd 1", "bwd 1"]
    assert profiler.written == [f"rank{rank}.json.gz"]
    mapped = re.findall(r"--map '([^']*)'", PAGE.partition("## Which events")[0])
    options = import_options(mapped, {}, None, None)
    described, chunks = imported(KINETO, [tmp_path / f"rank{rank}.json"], patterns=options.patterns)
    assert described.num_ops == 4
    assert chunks[0].mb_id.tolist() == [0, 0, 1, 1]

"""Links, index and example script of docs/feeds."""

import re
from pathlib import Path

import pytest

from app.trace.ops import OP_NAMES
from app.trace.readers.registry import FORMATS
from tests.client.conftest import TOKEN
from tests.client.recorders import WITHIN_S

FEEDS = Path(__file__).parents[3] / "docs" / "feeds"
PAGES = sorted(FEEDS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_relative_links_resolve(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_feed_has_an_indexed_page():
    index = (FEEDS / "README.md").read_text()
    for page in PAGES:
        assert page.name == "README.md" or f"({page.name})" in index
    for name in FORMATS:
        assert (FEEDS / f"{name}.md").exists() or name == "published"


def test_readme_script_records_its_steps(paceline, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "PACELINE_RUN_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("URL", paceline.url), ("TOKEN", TOKEN), ("JOB", "first")):
        monkeypatch.setenv(f"PACELINE_{name}", value)
    [script] = re.findall(r"```python\n(.*?)```", (FEEDS / "README.md").read_text(), re.DOTALL)
    exec(compile(script.replace("range(12)", "range(2)"), "README.md", "exec"), {})
    paceline.wait_for(lambda: len(paceline.steps_done) == 2, WITHIN_S)
    assert [step for step, _ in paceline.steps_done] == [0, 1]
    named = [(op[0], OP_NAMES[op[1]]) for op in paceline.ops]
    for step in (0, 1):
        # A garbage collection meanwhile is recorded, too.
        ops = [name for at, name in named if at == step and name != "gc-pause"]
        assert ops == ["forward-compute", "backward-compute"] * 4 + ["optimizer"]
    assert paceline.puts[0][0] == "/api/v1/jobs/first"

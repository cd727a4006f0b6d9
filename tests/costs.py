"""What tests cost: CPU seconds of each file and of the servers that it starts, and its waits.

A pytest plugin (`-p tests.costs` in pyproject.toml). Each worker measures its own tests, the
controller adds up and prints the ten largest files. `--whole test`, of `make test`, fails a run in
which a folder takes half more CPU than `.ci/cost_budgets.toml` gives it (a small one, 7 s more), or
all tests together wait longer than allowed; a machine that takes twice the planned CPU is not
judged. It and `--whole night` keep in `.artefacts/` what a whole run that passed has cost, of which
`make costs` writes `.ci/test_costs.tsv`, by which `schedule.py` orders the files.
"""

import ctypes
import json
import os
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TABLE = ROOT / ".ci" / "test_costs.tsv"
BUDGETS = ROOT / ".ci" / "cost_budgets.toml"
ARTEFACTS = ROOT / ".artefacts"
WHOLE_RUNS = ("test", "night")
ALLOWED_EXCESS = 1.5  # of a folder's budget: CPU seconds differ by as much beside other processes
ALLOWED_ONCE_S = 7.0  # what each worker loads once, 4.5 s, falls on whichever folder comes first
TOO_SLOW_TO_JUDGE = 2.0  # times the planned CPU: such a machine took 20 s, then 53 s for one folder
NOT_JUDGED = "not judged on so slow a machine"
_NUM_PRINTED = 10
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


@dataclass
class Cost:
    """CPU seconds of a test and its processes; seconds in which they neither compute nor queue."""

    cpu_s: float = 0.0
    wait_s: float = 0.0

    def add(self, other: "Cost") -> None:
        """Count the other one in."""
        self.cpu_s += other.cpu_s
        self.wait_s += other.wait_s


@dataclass(frozen=True)
class _Clocks:
    wall_s: float
    cpu_s: float
    queued_s: float

    @classmethod
    def read(cls) -> "_Clocks":
        times = os.times()
        own_s = times.user + times.system + times.children_user + times.children_system
        return cls(time.monotonic(), own_s + _descendants_cpu_s(), _queued_s())

    def cost_since(self, earlier: "_Clocks") -> Cost:
        cpu_s = max(0.0, self.cpu_s - earlier.cpu_s)
        wall_s = self.wall_s - earlier.wall_s
        return Cost(cpu_s, max(0.0, wall_s - cpu_s - (self.queued_s - earlier.queued_s)))


def _queued_s() -> float:
    """Seconds for which the calling thread was ready to run and another one ran."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # a kernel without schedstat
        return 0.0


def _descendants_cpu_s() -> float:
    """CPU seconds of all processes below this one, and of those that they have waited for."""
    ticks, pids = 0, _children(os.getpid())
    while pids:
        pid = pids.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        ticks += sum(map(int, fields[11:15]))
        pids += _children(pid)
    return ticks / _TICKS_PER_S


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208, thrice as fast
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except OSError:  # it, or a thread, has ended; elsewhere than on Linux there is no /proc
        pass
    return found


class Measuring:
    """Measures each test of one process, by file."""

    def __init__(self) -> None:
        # Servers that leave their parent (PostgreSQL's, the demo's) stay below this process.
        if hasattr(ctypes.CDLL(None), "prctl"):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.by_file: dict[str, Cost] = defaultdict(Cost)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Fixtures count for the first test that needs them."""
        before = _Clocks.read()
        result = yield
        self.by_file[item.nodeid.partition("::")[0]].add(_Clocks.read().cost_since(before))
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker of xdist hands its sums to the controller."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["costs"] = {path: astuple(cost) for path, cost in self.by_file.items()}


class Reporting:
    """Adds up what the workers measured; prints, writes and judges it at the end."""

    def __init__(self, measuring: Measuring, whole: str | None) -> None:
        self._by_file = measuring.by_file
        self._whole = whole
        self._judges = whole == "test"
        self._complaints: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """One of xdist's workers has ended."""
        for path, values in getattr(node, "workeroutput", {}).get("costs", {}).items():
            self._by_file[path].add(Cost(*values))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep what a whole run measured, and fail it where it is over a budget."""
        if self._whole is not None and is_whole(session):
            ARTEFACTS.mkdir(exist_ok=True)
            rows = {path: astuple(cost) for path, cost in sorted(self._by_file.items())}
            kept_in(self._whole).write_text(json.dumps(rows, indent=0) + "\n")
        if self._judges:
            self._complaints = over_budget(self._by_file, read_budgets())
            judged = [said for said in self._complaints if not said.startswith(NOT_JUDGED)]
            if judged and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The ten largest files, the sums, and every budget that is exceeded."""
        for complaint in self._complaints:
            terminalreporter.write_line(f"BUDGETS: {complaint}", red=True)
        largest = sorted(self._by_file.items(), key=lambda row: -row[1].cpu_s)[:_NUM_PRINTED]
        if len(largest) < _NUM_PRINTED:
            return  # someone runs a few files
        terminalreporter.section("costs: seconds of CPU, seconds of waiting")
        for path, cost in largest:
            terminalreporter.write_line(f"{cost.cpu_s:7.1f} {cost.wait_s:7.1f}  {path}")
        total = Cost()
        for cost in self._by_file.values():
            total.add(cost)
        terminalreporter.write_line(f"{total.cpu_s:7.1f} {total.wait_s:7.1f}  all tests")


def is_whole(session: pytest.Session) -> bool:
    """Whether all tests have run and passed: none was left out by an argument."""
    config = session.config
    is_all = config.args_source == pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
    return is_all and session.exitstatus == pytest.ExitCode.OK


def kept_in(whole: str) -> Path:
    """Where the costs of such a whole run are kept."""
    return ARTEFACTS / f"costs-{whole}.json"


@dataclass(frozen=True)
class Budgets:
    """What `make test` may cost: CPU seconds by folder, and the sum of waits."""

    cpu_s: Mapping[str, float]
    waits_s: float


def read_budgets(path: Path = BUDGETS) -> Budgets:
    """The committed budgets."""
    found = tomllib.loads(path.read_text())
    return Budgets(found["cpu_s"], found["waits_s"])


def over_budget(by_file: Mapping[str, Cost], budgets: Budgets) -> list[str]:
    """What costs too much, where each may take longer by as much as all others together do."""
    folders: dict[str, float] = defaultdict(float)
    for path, cost in by_file.items():
        folders[folder_of(path)] += cost.cpu_s
    planned_s = sum(budgets.cpu_s.get(folder, 0.0) for folder in folders)
    took_s = sum(cpu_s for folder, cpu_s in folders.items() if folder in budgets.cpu_s)
    if planned_s and took_s > TOO_SLOW_TO_JUDGE * planned_s:
        return [f"{NOT_JUDGED}: tests took {took_s:.0f} s of CPU, {planned_s:.0f} s were planned"]
    found = []
    for folder, cpu_s in sorted(folders.items()):
        if folder not in budgets.cpu_s:
            found.append(f"{folder} has no budget in .ci/{BUDGETS.name}; it took {cpu_s:.1f} s")
            continue
        budget_s = budgets.cpu_s[folder]
        others_s = planned_s - budget_s
        slower = max(1.0, (took_s - cpu_s) / others_s) if others_s else 1.0
        allowed_s = slower * max(ALLOWED_EXCESS * budget_s, budget_s + ALLOWED_ONCE_S)
        if cpu_s > allowed_s:
            allowance = f"{budget_s:.0f} s planned, {allowed_s:.0f} s allowed on this machine"
            found.append(f"{folder} took {cpu_s:.1f} s of CPU: {allowance}")
    slower = max(1.0, took_s / planned_s) if planned_s else 1.0
    waits_s, allowed_s = sum(cost.wait_s for cost in by_file.values()), slower * budgets.waits_s
    if waits_s > allowed_s:
        found.append(f"tests waited for {waits_s:.0f} s: at most {allowed_s:.0f} s")
    return found


def folder_of(path: str) -> str:
    """The folder of tests/ that a budget is for; "tests" for files beside the folders."""
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Only a whole run can be held against budgets."""
    parser.addoption(
        "--whole",
        choices=WHOLE_RUNS,
        help="keep what tests cost; `test`: fail where they cost more than their budget",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Measure in every process that runs tests; report in the one that people see."""
    config.pluginmanager.register(measuring := Measuring(), "costs-measuring")
    if not hasattr(config, "workerinput"):
        reporting = Reporting(measuring, config.getoption("whole"))
        config.pluginmanager.register(reporting, "costs-reporting")


def read_table() -> dict[str, list[str]]:
    """Rows of the committed table by file: CPU seconds, seconds of waiting, seconds at night."""
    rows = (line.split("\t") for line in TABLE.read_text().splitlines()[1:])
    return {path: values for path, *values in rows if (ROOT / path).exists()}


def write_table() -> None:
    """Write the table from the last whole runs, the largest files first.

    Where one has not run here, its column stays as it was.

    Raises:
        SystemExit: none has.
    """
    measured = {
        whole: {
            path: Cost(*values) for path, values in json.loads(kept_in(whole).read_text()).items()
        }
        for whole in WHOLE_RUNS
        if kept_in(whole).exists()
    }
    if not measured:
        raise SystemExit("costs: run `make test` first; nothing was measured here")
    known = read_table()
    rows: dict[str, list[str]] = {}
    for path in sorted({*known, *(path for costs in measured.values() for path in costs)}):
        cpu_s, wait_s, night_s = known.get(path, ["", "", ""])
        if "test" in measured:
            cost = measured["test"].get(path)
            cpu_s, wait_s = (f"{cost.cpu_s:.1f}", f"{cost.wait_s:.1f}") if cost else ("", "")
        if "night" in measured:
            cost = measured["night"].get(path)
            night_s = f"{cost.cpu_s + cost.wait_s:.1f}" if cost else ""
        rows[path] = [cpu_s, wait_s, night_s]
    order = sorted(rows, key=lambda path: -sum(float(value or 0.0) for value in rows[path][:2]))
    lines = ["\t".join([path, *rows[path]]) + "\n" for path in order]
    TABLE.write_text("file\tcpu_s\twait_s\tnight_s\n" + "".join(lines))


if __name__ == "__main__":
    write_table()

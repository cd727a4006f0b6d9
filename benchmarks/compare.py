"""`compare`: is the working tree slower than an earlier commit? Measured in alternation.

Machines drift by more than a release changes, so no figure of one day is held against another's:
the other commit is built beside the working tree, and both run the same benchmark in turn, each
with its own code, its own benchmarks and its own packages. A pair gives a ratio; pairs go on until
the middle half of the ratios lies close together.
"""

import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.cli.terminal import stderr_console
from app.errors import InvalidRequest
from benchmarks.measuring import process_group

ROOT = Path(__file__).parents[1]
# Outside of the working tree, whose linters would read it; other clones of this user's use it, too.
BUILT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline" / "compare"
TRACE = ROOT / ".." / "shared" / "traces" / "trace-AR.parquet"

# A release that is 3 % slower is told apart from noise; ten such releases are a third slower.
SLOWER = 1.03
# A run differs from the next by 3 to 8 % on a shared machine: by nine pairs whose quartiles lay
# close by chance, a tree was once 5 % slower than itself.
MIN_PAIRS, MAX_PAIRS = 15, 30
# AR, client and 12.3 M operations together take ten minutes at most, also on a slow machine; the
# median of fewer pairs would be one of chance.
MAX_S, FEWEST_PAIRS = 160.0, 5
CLOSE = 0.03  # distance of a quartile from the median, as a share of it, that needs no more pairs
EXIT_SLOWER, EXIT_FAILED = 1, 2
LIMIT_S = 600.0  # of one run; the longest takes half a minute


@dataclass(frozen=True, slots=True)
class Figure:
    """A key of what a benchmark prints."""

    key: str
    higher_is_better: bool = False
    # Others are shown: they differ from run to run by more than a release changes.
    is_judged: bool = True

    def ratio(self, new: float, old: float) -> float:
        """Above 1 where the working tree is worse, whatever is counted."""
        return old / new if self.higher_is_better else new / old


CPU = Figure("cpu_s", is_judged=False)  # of the whole process and its servers, beside wall clock


@dataclass(frozen=True, slots=True)
class Comparable:
    """A benchmark that both trees have, its arguments, and the figures that are compared.

    `source` is what counts and times, from the root: each tree runs its own.
    """

    source: str
    arguments: tuple[str, ...]
    figures: tuple[Figure, ...]


COMPARABLE: Mapping[str, Comparable] = {
    "analyze": Comparable(
        "benchmarks/analysis.py",
        ("analyze", str(TRACE), "--repeats", "10"),
        (Figure("total_s"),),
    ),
    "analyze-large": Comparable(
        "benchmarks/analysis.py",
        ("analyze", "--synthetic", "dp=1024,pp=16,microbatches=64,steps=2", "--repeats", "3"),
        (Figure("total_s"), Figure("peak_rss_bytes")),
    ),
    "client": Comparable(
        "benchmarks/recording",
        ("client", "--ops", "40000", "--steps", "4"),
        (
            Figure("record_p50_us"),
            Figure("record_p99_us", is_judged=False),
            Figure("bytes_per_op"),
            Figure("http_bytes_per_op"),
        ),
    ),
    "first": Comparable(
        "benchmarks/analysis.py",
        ("first", str(TRACE), "--repeats", "3"),
        (Figure("first_analysis_s"),),
    ),
    "ingest": Comparable(
        "benchmarks/service/ingest.py",
        ("ingest", "--batch-rows", "10000", "--seconds", "3"),
        (Figure("rows_per_s", higher_is_better=True), Figure("ack_p50_ms", is_judged=False)),
    ),
    "pipeline": Comparable(
        "benchmarks/service/pipeline.py",
        ("pipeline", "--synthetic", "dp=32,pp=8,microbatches=32,steps=64", "--paced-steps", "0"),
        (Figure("rows_per_s", higher_is_better=True),),
    ),
}


class NotMeasured(InvalidRequest):
    """A benchmark does not run in a tree."""

    def __init__(self, directory: Path, reason: str) -> None:
        self.is_here = directory == ROOT
        where = "the working tree" if self.is_here else directory.name
        super().__init__(f"in {where}: {reason}")


@dataclass(frozen=True, slots=True)
class Tree:
    """A checkout with its interpreter."""

    directory: Path
    python: Path

    def measure(self, benchmark: Comparable) -> dict[str, float]:
        """What the tree's own benchmark prints; the CPU seconds of all its processes.

        Raises:
            NotMeasured: it has no such benchmark, or the run failed.
        """
        command = [str(self.python), *self._spelling(), *benchmark.arguments]
        with (
            tempfile.TemporaryFile("w+") as output,
            tempfile.TemporaryFile("w+") as errors,
            process_group(
                command,
                LIMIT_S,
                cwd=self.directory,
                env=_environment(),
                stdout=output,
                stderr=errors,
            ) as process,
        ):
            # Servers that the benchmark started and waited for count, too.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            errors.seek(0)
            if process.returncode:
                raise NotMeasured(self.directory, _why(process.returncode, errors.read()))
            printed = output.read()
        try:
            found = json.loads(printed.splitlines()[-1])
            figures = {figure.key: float(found[figure.key]) for figure in benchmark.figures}
        except KeyError as error:
            raise NotMeasured(self.directory, f"it prints no {error.args[0]}") from error
        except (LookupError, TypeError, ValueError) as error:
            raise NotMeasured(self.directory, "it prints no line of figures") from error
        return figures | {CPU.key: usage.ru_utime + usage.ru_stime}

    def has_same(self, other: "Tree", source: str) -> bool:
        """Whether both trees have the same text of a file, or of a folder's files."""
        return _texts(self.directory / source) == _texts(other.directory / source)

    def _spelling(self) -> tuple[str, ...]:
        if (self.directory / "benchmarks" / "__main__.py").exists():
            return ("-m", "benchmarks")
        if (self.directory / "app" / "cli" / "bench").exists():
            return ("-m", "app.cli", "bench")
        raise NotMeasured(self.directory, "it has no benchmarks")


def _texts(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.glob("*.py"))
    return {file.name: file.read_bytes() for file in files}


def _environment() -> dict[str, str]:
    """Ours, without what would make one tree import the other one's modules, or compile its own."""
    left_out = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    # Where a process's stack and memory begin moves a figure by a percent or two, and hangs on the
    # length of its environment and paths: of another length in each run, it is no tree's luck.
    return kept | {"PADDING_OF_COMPARE": "x" * random.randrange(4096)}  # noqa: S311


def _why(status: int, errors: str) -> str:
    killed = f"killed, after {LIMIT_S:.0f} s or for want of memory"
    return killed if status == -signal.SIGKILL else _last_line(errors)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it failed without a word"


def built(revision: str) -> Tree:
    """The commit's files with an environment of their own, made once.

    Raises:
        InvalidRequest: there is no such commit, or it cannot be installed.
    """
    commit = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if not commit:
        raise InvalidRequest(f"{revision!r} is no commit of this repository: try `git log`")
    with _kept(commit[:12]) as directory:
        if not (directory / ".venv" / ".run-stamp").exists():
            _unpack(commit, directory)
            _install(directory, directory / ".venv")
        return Tree(directory, directory / ".venv" / "bin" / "python")


def working_tree() -> Tree:
    """The working tree with an environment like that of a commit, made once for what it needs.

    Beside the packages of tests, which Numba asks for coverage, Python collects garbage for longer:
    a tree with them was 1 to 2 % slower than itself.

    Raises:
        InvalidRequest: it cannot be installed.
    """
    needed = hashlib.sha256(str(ROOT).encode())
    for name in ("requirements.lock", "pyproject.toml", "client/pyproject.toml"):
        needed.update((ROOT / name).read_bytes())
    with _kept(f"working-tree-{needed.hexdigest()[:12]}") as directory:
        if not (directory / ".venv" / ".run-stamp").exists():
            _install(ROOT, directory / ".venv")
        return Tree(ROOT, directory / ".venv" / "bin" / "python")


@contextmanager
def _kept(name: str) -> Iterator[Path]:
    """A folder that stays there, for one process at a time: another clone may be filling it."""
    directory = BUILT / f"{name}-py{sys.version_info.major}{sys.version_info.minor}"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory


def _unpack(commit: str, directory: Path) -> None:
    shutil.rmtree(directory)  # half of it, where an earlier run was ended
    directory.mkdir()
    with tempfile.TemporaryFile() as packed:
        subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=packed, check=True)  # noqa: S607
        packed.seek(0)
        with tarfile.open(fileobj=packed) as archive:
            archive.extractall(directory, filter="data")


def _install(directory: Path, venv: Path) -> None:
    installer = directory / ".ci" / "bootstrap"
    if not installer.exists():
        raise InvalidRequest(
            f"{directory.name} has no .ci/bootstrap, so it cannot be installed here"
        )
    done = subprocess.run(
        [str(installer), str(venv), "run"],
        cwd=directory,
        env=_environment() | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise InvalidRequest(f"{directory.name} cannot be installed: {_last_line(done.stderr)}")


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True)
class Ratios:
    """How one figure of the working tree compares with the other commit's, pair by pair."""

    figure: Figure
    new: list[float]
    old: list[float]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """Lower quartile, median and upper quartile of the ratios."""
        pairs = zip(self.new, self.old, strict=True)
        ratios = [self.figure.ratio(new, old) for new, old in pairs]
        if len(ratios) < 2:
            return (ratios[0],) * 3
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, middle, high

    @property
    def are_close(self) -> bool:
        """Whether both quartiles lie as close to the median as is asked for."""
        low, middle, high = self.quartiles
        return max(high - middle, middle - low) <= CLOSE * middle

    @property
    def is_slower(self) -> bool:
        """Whether the working tree is worse, and not by chance."""
        low, middle, _ = self.quartiles
        return middle > SLOWER and low > 1.0

    def as_json(self) -> dict[str, Any]:
        """The ratio and both medians."""
        low, middle, high = self.quartiles
        return {
            "ratio": round(middle, 4),
            "quartiles": [round(low, 4), round(high, 4)],
            "working_tree": statistics.median(self.new),
            "commit": statistics.median(self.old),
            "slower": self.is_slower if self.figure.is_judged else None,
        }


def pairs_of(
    new: Tree, old: Tree, benchmark: Comparable, max_pairs: int, max_s: float
) -> Iterator[dict[str, Ratios]]:
    """The ratios after each pair, until they lie close together; one pair before is not counted.

    At most `max_pairs`, and no further one after `max_s` but for the first `FEWEST_PAIRS`.

    Raises:
        NotMeasured: one of the trees cannot run it.
    """
    ratios = {figure.key: Ratios(figure, [], []) for figure in (*benchmark.figures, CPU)}
    until_s = time.monotonic() + max_s
    for number in range(-1, max_pairs):
        # The second of a pair finds a warmer machine: each is it in turn.
        order = (new, old) if number % 2 else (old, new)
        measured = {tree.directory: tree.measure(benchmark) for tree in order}
        if number < 0:
            continue
        for key, both in ratios.items():
            both.new.append(measured[new.directory][key])
            both.old.append(measured[old.directory][key])
        yield ratios
        judged = [both for both in ratios.values() if both.figure.is_judged]
        if number + 1 >= MIN_PAIRS and all(both.are_close for both in judged):
            return
        if number + 1 >= FEWEST_PAIRS and time.monotonic() > until_s:
            return


def compare(
    revision: Annotated[str, typer.Argument(help="The commit to compare with.", metavar="REV")],
    only: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(COMPARABLE)}; again for more.")
    ] = None,
    pairs: Annotated[int, typer.Option(min=2, help="At most so many pairs.")] = MAX_PAIRS,
    seconds: Annotated[
        float, typer.Option(min=1.0, help="No further pair of a benchmark after so long.")
    ] = MAX_S,
) -> None:
    """Build REV beside the working tree, run both in alternation, and say what became slower.

    A ratio above 1 means that the working tree is slower, or sends more. It is slower where the
    median is above 1.03 and the lower quartile above 1; the exit status is 1 then. It is 2 where
    nothing was compared, or a benchmark fails in the working tree.

    Example: python -m benchmarks compare HEAD~1 --only analyze
    """
    names = only or list(COMPARABLE)
    if unknown := sorted(set(names) - set(COMPARABLE)):
        raise InvalidRequest(f"--only: no {unknown[0]!r} among {', '.join(COMPARABLE)}")
    if not TRACE.exists() and {"analyze", "first"} & set(names):
        raise InvalidRequest(f"{TRACE.resolve()} is not there: it is measured; see --only")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends what it started
    console = stderr_console()
    with console.status(f"installing {revision}; a minute or three the first time"):
        old, new = built(revision), working_tree()
    found: dict[str, Any] = {}
    for name in names:
        found[name] = _compared(console, name, new, old, pairs, seconds)
        _show(console, name, found[name])
    print(json.dumps({"commit": old.directory.name, "benchmarks": found}))
    slower = [
        name
        for name, result in found.items()
        if any(figure["slower"] for figure in result.get("figures", {}).values())
    ]
    if any(result.get("fails_here") for result in found.values()) or not any(
        "figures" in result for result in found.values()
    ):
        raise typer.Exit(EXIT_FAILED)
    if slower:
        raise typer.Exit(EXIT_SLOWER)


def _compared(
    console: Console, name: str, new: Tree, old: Tree, pairs: int, seconds: float
) -> dict[str, Any]:
    benchmark, ratios, num_pairs = COMPARABLE[name], {}, 0
    notes: dict[str, Any] = {"same_benchmark": new.has_same(old, benchmark.source)}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # Drawn rarely: the spinner would take a processor's time from what is measured.
    with Progress(*columns, console=console, transient=True, refresh_per_second=1) as progress:
        task = progress.add_task(f"{name}: first pair, not counted")
        try:
            for ratios in pairs_of(new, old, benchmark, pairs, seconds):
                num_pairs += 1
                _, middle, _ = ratios[benchmark.figures[0].key].quartiles
                progress.update(task, description=f"{name}: pair {num_pairs}, ratio {middle:.3f}")
        except NotMeasured as reason:
            notes |= {"not_comparable": str(reason), "fails_here": reason.is_here}
    if num_pairs < FEWEST_PAIRS and "not_comparable" in notes:
        return notes
    figures = {key: both.as_json() for key, both in ratios.items()}
    return {"pairs": num_pairs, "figures": figures, **notes}


def _show(console: Console, name: str, result: Mapping[str, Any]) -> None:
    if reason := result.get("not_comparable"):
        console.print(f"{name}: not comparable: {reason}", markup=False)
    if "figures" not in result:
        return
    if not result["same_benchmark"]:
        console.print(f"{name}: the commit has another benchmark; it may count other things")
    table = Table(title=f"{name}, {result['pairs']} pairs", title_justify="left", box=None)
    for heading in ("figure", "working tree", "commit", "ratio", "quartiles", ""):
        table.add_column(heading, justify="left" if heading in ("figure", "") else "right")
    for key, figure in result["figures"].items():
        table.add_row(
            key,
            f"{figure['working_tree']:.4g}",
            f"{figure['commit']:.4g}",
            f"{figure['ratio']:.3f}",
            " to ".join(f"{value:.3f}" for value in figure["quartiles"]),
            _verdict(figure["slower"]),
        )
    console.print(table)


def _verdict(is_slower: bool | None) -> str:
    return {True: "SLOWER", False: "not slower", None: "not judged"}[is_slower]

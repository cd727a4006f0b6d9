"""`thresholds`: which answers hang on which threshold of the diagnosis?

Every field of the limits in `app.diagnosis` is set to 0.9 and to 1.1 times its value, and the jobs
that read it are diagnosed again. What changes shows how near to its threshold a job lies; what no
job reads, or what changes nothing, is a threshold that no job holds in its place.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from app.cli.terminal import stderr_console
from app.diagnosis.diagnose import Diagnosis
from app.engine.replays import prepare
from app.engine.report import analyse_replay, report_result
from app.errors import InvalidRequest, InvalidTrace
from app.formatting import percent, plural
from app.result.finding import Finding
from app.result.window_result import WindowResult
from app.trace.imputation import impute
from app.trace.window import Window
from benchmarks import gpu
from benchmarks.diagnosis.limits import Threshold, all_thresholds
from benchmarks.diagnosis.varied_case import VariedCase
from benchmarks.measuring import logs_on_stderr, map_processes
from benchmarks.strangers.command import job_number, shares_of
from benchmarks.strangers.drawn_jobs import JobNumber, draw_job
from benchmarks.strangers.scoring import judge

RECORDINGS = Path(__file__).parents[1] / ".." / "shared" / "gpu"
MAX_COST_DIFFERENCE = 0.02  # a share of the job's time: a smaller one is no other answer
EXIT_FAILED = 1
_MAX_KINDS = 5  # named of those that read a threshold; more are counted
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is diagnosed, a stranger's job or a recording, and the thresholds that are varied.

    `prefixes` begin the keys of these thresholds. `folder` has the recording.
    """

    source: JobNumber | gpu.Truth
    prefixes: tuple[str, ...] = ("",)
    folder: Path = RECORDINGS

    @property
    def kind(self) -> str:
        """Its faults, or the group of a job without any."""
        if isinstance(self.source, gpu.Truth):
            return "recording"
        return "+".join(self.source.kinds) or self.source.group

    @property
    def name(self) -> str:
        """The same in every run."""
        if isinstance(self.source, gpu.Truth):
            return f"recording {self.source.name}"
        return f"{self.source.group}/{self.source.index} of seed {self.source.seed} ({self.kind})"

    def drawn(self) -> tuple[Window | None, Callable[[WindowResult], bool]]:
        """What is analysed, None where its file is refused, and whether a result is right."""
        if isinstance(self.source, gpu.Truth):
            truth = self.source
            return gpu.recorded(truth, self.folder), lambda result: not gpu.misses(truth, result)
        job = draw_job(self.source)
        window = None if job.window is None else impute(job.window)
        return window, lambda result: judge(job, result, 0.0).is_flawless


@dataclass(frozen=True, slots=True)
class Named:
    """A finding as it is compared."""

    cause: str
    culprits: str
    onset_step: int | None
    cost: float | None

    @classmethod
    def of(cls, finding: Finding) -> "Named":
        """The finding's cause, culprits in words, onset and cost."""
        names = sorted(culprit.name() for culprit in finding.culprits)
        culprits = ", ".join(names) or "every worker"
        return cls(finding.cause, culprits, finding.onset_step, finding.cost)

    def is_like(self, other: "Named") -> bool:
        """Whether both say the same, costs but for `MAX_COST_DIFFERENCE`."""
        place = (self.cause, self.culprits, self.onset_step)
        if place != (other.cause, other.culprits, other.onset_step):
            return False
        if self.cost is None or other.cost is None:
            return self.cost is other.cost
        return abs(self.cost - other.cost) <= MAX_COST_DIFFERENCE

    def __str__(self) -> str:
        since = "" if self.onset_step is None else f", since step {self.onset_step}"
        cost = "" if self.cost is None else f", {percent(self.cost)}"
        return f"{self.cause} of {self.culprits}{since}{cost}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said of a job, and whether it is right; `named` is None where causes are withheld."""

    named: tuple[Named, ...] | None
    is_right: bool

    def is_like(self, other: "Answer") -> bool:
        """Whether both name the same in the same order, and are both right or both wrong."""
        one, two = self.named, other.named
        if self.is_right is not other.is_right or one is None or two is None:
            return self.is_right is other.is_right and one is two
        return len(one) == len(two) and all(map(Named.is_like, one, two))

    def __str__(self) -> str:
        if self.named is None:
            return "causes withheld"
        return "; ".join(map(str, self.named)) or "nothing"


class Examination:
    """One job: its usual diagnosis, and those with other thresholds, held against the truth."""

    def __init__(self, window: Window, is_right: Callable[[WindowResult], bool]) -> None:
        replay = prepare(window)
        report = analyse_replay(replay)
        self._figures, self._is_right = report_result(report), is_right
        self.case = VariedCase(replay, report)
        self.usual = self._answer(self.case.usual)

    def changes(self, threshold: Threshold) -> Iterator[Row]:
        """The other values of a threshold that give another answer, or none."""
        for factor, value in threshold.varied().items():
            change = {"key": threshold.key, "factor": factor, "value": value}
            try:
                answer = self._answer(self.case.with_other(threshold, value))
            except Exception as error:  # of any kind: the diagnosis is not made for such values
                yield change | {"error": repr(error)}
                continue
            if not answer.is_like(self.usual):
                yield change | {"said": str(answer), "is_right": answer.is_right}

    def _answer(self, diagnosis: Diagnosis) -> Answer:
        result = diagnosis.added_to(self._figures)
        named = None if result.findings is None else tuple(map(Named.of, result.findings))
        return Answer(named, self._is_right(result))


def examined(subject: Subject) -> Row:
    """The job's line: which thresholds it reads, and which of their other values change what."""
    row: Row = {"job": subject.name, "kind": subject.kind, "read": [], "changes": []}
    window, is_right = subject.drawn()
    if window is None or not window.steps:
        return row
    try:
        examination = Examination(window, is_right)
    except InvalidTrace:  # refused: its steps cannot be replayed
        return row
    usual, read = examination.usual, examination.case.read
    varied = [
        threshold
        for threshold in all_thresholds()
        if threshold.key in read and threshold.key.startswith(subject.prefixes)
    ]
    return row | {
        "read": sorted(read),
        "said": str(usual),
        "is_right": usual.is_right,
        "changes": [change for threshold in varied for change in examination.changes(threshold)],
    }


def thresholds(
    jobs: Annotated[int, typer.Option(min=1, help="Strangers' jobs, of all groups.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the jobs, as for `strangers`.")] = 1,
    recordings: Annotated[
        Path | None, typer.Option(help="Recordings from GPUs too; ../shared/gpu where that is.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only thresholds that begin so, as detectors.link; again for more."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Append a line of JSON per job here.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the file of --out.")] = False,
    processes: Annotated[int, typer.Option(min=1, help="Cores to use.")] = 2,
) -> None:
    """Diagnose jobs with every threshold a tenth lower and higher, and print what that changes.

    First come the thresholds that change an answer, with the jobs, then those that change none,
    with what the code says of them. The exit status is 1 where a diagnosis failed, else 0.

    Example: python -m benchmarks thresholds --jobs 50 --only detectors.gc_pause
    """
    prefixes = tuple(only or ("",))
    subjects = [
        Subject(job_number(seed, group, index), prefixes)
        for group, count in shares_of(jobs).items()
        for index in range(count)
    ]
    folder = recordings or RECORDINGS
    if folder.is_dir():
        subjects += [Subject(truth, prefixes, folder) for truth in gpu.TRUTHS]
    elif recordings is not None:
        raise InvalidRequest(f"{recordings}: no such folder")
    head = {
        "thresholds": {threshold.key: repr(threshold.value) for threshold in all_thresholds()},
        "only": list(prefixes),
    }
    rows = _begun(out, head) if resume else []
    if out is not None and not resume:
        out.write_text(f"{json.dumps(head)}\n")
    names = {row["job"] for row in rows}
    left = [subject for subject in subjects if subject.name not in names]
    with logs_on_stderr(), map_processes(examined, left, processes) as answers:
        console = stderr_console()
        for row in track(answers, "diagnosing", total=len(left), console=console, transient=True):
            rows.append(row)
            if out is not None:
                with out.open("a") as lines:
                    lines.write(f"{json.dumps(row)}\n")
    varied = [threshold for threshold in all_thresholds() if threshold.key.startswith(prefixes)]
    typer.echo("\n".join(report(rows, varied)))
    if any("error" in change for row in rows for change in row["changes"]):
        raise typer.Exit(EXIT_FAILED)


def _begun(out: Path | None, head: Row) -> list[Row]:
    """The lines of an earlier run with the same values of the same thresholds."""
    if out is None or not out.is_file():
        raise InvalidRequest("--resume needs the file of --out that an earlier run has written")
    text = out.read_text()
    written = text[: text.rfind("\n") + 1]  # without half a line of a run that was killed
    first, *rows = map(json.loads, written.splitlines() or ["null"])
    if first != head:
        raise InvalidRequest(f"{out}: of other thresholds, or other values: begin a new file")
    out.write_text(written)
    return rows


def report(rows: Sequence[Row], varied: Sequence[Threshold]) -> Iterator[str]:
    """What the lines of all jobs say of each threshold, in lines for people."""
    changed = {change["key"] for row in rows for change in row["changes"]}
    diagnosed = sum("said" in row for row in rows)
    of_those = f"of {plural(len(varied), 'threshold')}, on {plural(diagnosed, 'job')}"
    yield f"{len(changed)} {of_those}, change an answer where they are a tenth lower or higher"
    for threshold in varied:
        if threshold.key in changed:
            yield f"\n{threshold.key} = {threshold.value}, {_readers(rows, threshold)}"
            yield from (f"  {line}" for line in _changes(rows, threshold))
    yield f"\n{len(varied) - len(changed)} {of_those}, change none"
    owner = None
    for threshold in varied:
        if threshold.key not in changed:
            if owner is not threshold.owner:
                owner = threshold.owner
                yield f"\n{threshold.module}: {' '.join((getdoc(type(owner)) or '').split())}"
            readers = _readers(rows, threshold)
            yield f"  {threshold.field} = {threshold.value}, {readers}: {threshold.origin}"


def _readers(rows: Sequence[Row], threshold: Threshold) -> str:
    """How many jobs read it, by kind: the coverage of the threshold."""
    kinds = Counter(row["kind"] for row in rows if threshold.key in row["read"])
    if not kinds:
        return "read by no job"
    named = [f"{count} {kind}" for kind, count in kinds.most_common(_MAX_KINDS)]
    more = kinds.total() - sum(count for _, count in kinds.most_common(_MAX_KINDS))
    named += [f"{more} of {plural(len(kinds) - _MAX_KINDS, 'other kind')}"] if more else []
    return f"read by {plural(kinds.total(), 'job')} ({', '.join(named)})"


def _changes(rows: Sequence[Row], threshold: Threshold) -> Iterator[str]:
    words = {True: "right", False: "wrong"}
    for row in rows:
        for change in row["changes"]:
            if change["key"] == threshold.key:
                at = f"at {change['value']}, {row['job']}"
                if "error" in change:
                    yield f"{at}: FAILED: {change['error']}"
                    continue
                turn = f"{words[row['is_right']]} to {words[change['is_right']]}"
                yield f"{at}: {turn}: {row['said']} -> {change['said']}"

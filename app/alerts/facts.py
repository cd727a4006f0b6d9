"""Facts that rules read: of one window, and of ranks that send no data.

Findings are indexed by worker and host: a large job may have as many culprits as workers, and
alerts on very many of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from app.result.finding import Culprit, Finding
from app.result.join import finding_key
from app.result.window_result import WindowResult
from app.trace.window import WindowState

Worker = tuple[int, int]  # dp rank, stage


def worker_name(dp_rank: int, stage: int) -> str:
    """A worker as its page's address has it."""
    return f"{dp_rank}-{stage}"


def worker_of_name(worker: str) -> Worker:
    """Dp rank and stage of a worker that `worker_name` has named."""
    dp_rank, _, stage = worker.partition("-")
    return int(dp_rank), int(stage)


def culprit_host(culprit: Culprit, hosts: Mapping[Worker, str]) -> str | None:
    """The host that this culprit is, or is a worker on; None of a whole rank or stage."""
    worker = _worker(culprit)
    return hosts.get(worker) if culprit.host is None and worker is not None else culprit.host


def finding_labels(finding: Finding, hosts: Mapping[Worker, str]) -> dict[str, str]:
    """Cause, worker and host, each only if the finding names exactly one."""
    culprits = finding.culprits
    labels: dict[str, str] = {"cause": finding.cause}
    if len(culprits) == 1 and (worker := _worker(culprits[0])) is not None:
        labels["worker"] = worker_name(*worker)
    named_hosts = {culprit_host(culprit, hosts) for culprit in culprits}
    if len(named_hosts) == 1 and (host := named_hosts.pop()) is not None:
        labels["host"] = host
    return labels


def _worker(culprit: Culprit) -> Worker | None:
    """The worker that the culprit is or belongs to; None of a whole rank, stage or host."""
    if culprit.dp_rank is None or culprit.stage is None:
        return None
    return culprit.dp_rank, culprit.stage


_Key = tuple[int | None, int | None, str | None]  # dp rank, stage, host; None: any


class FindingIndex:
    """Findings indexed by worker and host; where several name one, the costliest counts.

    `hosts` are the hosts of the run's workers, as far as known.
    """

    def __init__(self, findings: Sequence[Finding], hosts: Mapping[Worker, str]) -> None:
        self._findings = findings
        self._hosts = hosts
        self._labels: dict[int, dict[str, str]] = {}
        self._places: dict[_Key, int] = {}
        self._on_hosts: dict[str, int] = {}
        for at, finding in enumerate(findings):
            for culprit in finding.culprits:
                self._places.setdefault(_key(culprit), at)
                if (host := culprit_host(culprit, hosts)) is not None:
                    self._on_hosts.setdefault(host, at)

    def by_worker(self, worker: Worker) -> Finding | None:
        """The finding that names the worker, its dp rank, its stage, or its host as a whole."""
        dp_rank, stage = worker
        keys: list[_Key] = [(dp_rank, stage, None), (dp_rank, None, None), (None, stage, None)]
        if (host := self._hosts.get(worker)) is not None:
            keys.append((None, None, host))
        at = min((self._places[key] for key in keys if key in self._places), default=None)
        return None if at is None else self._findings[at]

    def by_host(self, host: str) -> Finding | None:
        """The finding that names the host, or a worker on it."""
        at = self._on_hosts.get(host)
        return None if at is None else self._findings[at]

    def labels(self, finding: Finding) -> Mapping[str, str]:
        """Cause, worker and host of one of the findings, each only if it names exactly one."""
        if id(finding) not in self._labels:
            self._labels[id(finding)] = finding_labels(finding, self._hosts)
        return self._labels[id(finding)]


def _key(culprit: Culprit) -> _Key:
    is_host = culprit.dp_rank is None and culprit.stage is None
    return culprit.dp_rank, culprit.stage, culprit.host if is_host else None


@dataclass(frozen=True)
class WindowFacts:
    """One revision of a window, as rules and messages read it.

    `verdict` is None where the window has no figures. `hosts` are the run's, as far as known.
    `recent` is the result of the recent steps, which pages show; rules decide by the window alone,
    so that nothing that has changed is averaged with the time before, and messages say the figures
    of the recent steps. None where they are the window's own.
    `usual_step_s` is what a step of the run took before it changed to what it takes now; None where
    too few are known.
    """

    window_id: str
    state: WindowState
    verdict: str | None
    result: WindowResult
    num_gpus: int
    hosts: Mapping[Worker, str] = field(default_factory=dict)
    usual_step_s: float | None = None
    recent: WindowResult | None = None

    @cached_property
    def shown(self) -> "WindowFacts":
        """The facts with the figures that messages have: those of the recent steps."""
        return self if self.recent is None else replace(self, result=self.recent, recent=None)

    @property
    def is_counted(self) -> bool:
        """Whether alerts follow its figures: it is complete, or what it lacks was imputed."""
        is_usable = self.state == "complete" or (
            self.state == "incomplete" and self.result.imputed is not None
        )
        return is_usable and self.verdict is not None

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and first step, by which windows of a job are in order."""
        return window_position(self.window_id)

    @property
    def recorded_s(self) -> Sequence[float]:
        """Recorded seconds of each of its steps that has figures."""
        recorded_s = self.result.step_time_s.recorded
        return [step_s for step_s in recorded_s if step_s is not None]

    @property
    def started_s(self) -> float | None:
        """Unix time at which its first step started; None where that is not known."""
        return next(iter(self.result.step_started_s), None)

    @property
    def took_s(self) -> float:
        """All of these steps together: the window's part of the event time."""
        return float(sum(self.recorded_s))

    @property
    def findings(self) -> Sequence[Finding] | None:
        """Causes, most costly first; None if no diagnosis ran."""
        return self.result.findings

    def shown_finding(self, finding: Finding) -> Finding:
        """One of its findings as the recent steps show it: the same cause and culprits."""
        if self.recent is None:
            return finding
        if id(finding) not in self._shown_findings:  # comparing thousands of culprits takes long
            self._shown_findings[id(finding)] = self._same_of_recent(finding)
        return self._shown_findings[id(finding)]

    def _same_of_recent(self, finding: Finding) -> Finding:
        key = finding_key(finding)
        shown = self.shown.findings or ()
        same = [other for other in shown if finding_key(other) == key]
        if not same and finding.persistence == "transient":
            same = [other for other in shown if other.cause == finding.cause]
        return same[0] if same else finding

    @cached_property
    def _shown_findings(self) -> dict[int, Finding]:
        return {}

    @cached_property
    def accused(self) -> FindingIndex:
        """The findings by worker and host."""
        return FindingIndex(self.findings or (), self.hosts)


def window_position(window_id: str) -> tuple[int, int]:
    """Epoch and first step of a window's id."""
    epoch, _, first_step = window_id.partition("-")
    return int(epoch), int(first_step)


@dataclass(frozen=True, slots=True)
class MissingDataFacts:
    """Ranks that send nothing, by the consumer's clock; `names` lists the first few workers.

    Both moments are Unix times, None while no rank is silent. A run that `is_starting` has sent
    nothing so far and is not late yet; in one that `has_unseen_ranks` some workers have never sent
    a batch.
    `crash` says what ended a run that crashed at `crashed_at_s`.
    """

    is_starting: bool = False
    stalled_since_s: float | None = None
    silent_since_s: float | None = None
    names: Sequence[str] = ()
    num_silent: int = 0
    num_workers: int = 0
    num_gpus: int = 0
    last_step: int | None = None
    has_unseen_ranks: bool = False
    crash: str | None = None
    crashed_at_s: float | None = None

    @property
    def is_without_data(self) -> bool:
        """Whether no window can have figures: all workers are silent, or the run is starting.

        Where only some are, windows have figures of the others.
        """
        return self.stalled_since_s is not None or self.is_starting

"""Decides from the ends of a run's processes whether the job finished, crashed or was preempted.

When one rank fails, its peers fail after it, or the launcher ends them. So the cause of a crash is
the first failure other than a broken connection; without one, the rank that was killed or lost; or
the signal that came before all failures.

Some ranks are known to have ended, but not how. If all other ranks finished, they finished as well.
If others failed, or were asked to end after them, they were killed. If nothing is known of any
rank, the job crashed, since a kill is likelier than an end by `os._exit`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from app import formatting

Outcome = Literal["finished", "failed", "terminated", "killed", "ended"]
EndedAs = Literal["finished", "crashed", "preempted"]

Worker = tuple[int, int]  # dp_rank, stage

# Words, in lower case, in the exceptions that a rank raises after the end of another one.
_WORDS_OF_PEER_ERRORS = (
    *("nccl", "gloo", "closed by peer", "reset by peer", "connection refused", "broken pipe"),
    *("distbackenderror", "distnetworkerror", "diststoreerror", "processgroup", "tcpstore"),
    *("remote process exited", "collective operation timeout", "childfailederror"),
)


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank's process ended; None is unknown.

    Outcomes: `failed` by an exception or an exit status; `terminated` by a signal that asks the
    process to end; `killed` by another signal; `ended` in an unknown way. `at_s` is the Unix time
    of the report.
    """

    rank: int
    dp_rank: int
    stage: int
    host: str | None
    outcome: Outcome
    at_s: float
    error_type: str | None = None
    message: str | None = None
    signal: int | None = None
    exit_code: int | None = None

    @property
    def worker(self) -> Worker:
        """The rank's position in the job."""
        return self.dp_rank, self.stage

    @property
    def blames_peer(self) -> bool:
        """Whether the rank failed because another one had ended."""
        text = f"{self.error_type} {self.message}".lower()
        return self.outcome == "failed" and any(word in text for word in _WORDS_OF_PEER_ERRORS)


class EndCause(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that ended a job, as the store has it; None and a negative rank are unknown.

    `is_lost` as in `JobEnd`; `num_reported` is the number of ranks that reported their end.
    """

    rank: int
    dp_rank: int
    stage: int
    host: str | None = None
    outcome: Outcome
    error_type: str | None = None
    message: str | None = None
    signal: int | None = None
    exit_code: int | None = None
    is_lost: bool = False
    num_reported: int = 0


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How and when a job ended; `cause` is the rank that ended it, None for a finished job.

    With `is_lost` the causing rank itself reported nothing, so it is inferred from the others.
    """

    ended_as: EndedAs
    at_s: float
    cause: RankExit | None = None
    is_lost: bool = False
    num_reported: int = 0

    @property
    def end_cause(self) -> EndCause | None:
        """The cause, as it is stored."""
        if self.cause is None:
            return None
        cause = msgspec.convert(self.cause, EndCause, from_attributes=True)
        return replace(cause, is_lost=self.is_lost, num_reported=self.num_reported)


def judge(
    exits: Sequence[RankExit],
    num_workers: int,
    *,
    pp_size: int = 1,
    is_quiet: bool,
    seen: Collection[tuple[Worker, str | None]] = (),
) -> JobEnd | None:
    """How the job has ended by these reports; None while it may still run.

    `is_quiet`: no report has come for a while. `seen` are the workers that have sent data, with
    their hosts: one of them without a report was lost. A single worker without a report was lost
    as well if others failed because a peer had ended.
    """
    workers = {report.worker for report in exits}
    if not exits or not (is_quiet or len(workers) >= num_workers):
        return None
    ordered = sorted(exits, key=_moment)
    abnormal = [report for report in ordered if report.outcome not in ("finished", "ended")]
    unclear = [report for report in ordered if report.outcome == "ended"]
    if not abnormal and len(unclear) == len(ordered):
        return JobEnd("crashed", unclear[0].at_s, unclear[0], num_reported=len(exits))
    if not abnormal:
        return JobEnd("finished", ordered[-1].at_s)
    first, began_s = abnormal[0], abnormal[0].at_s
    failed = [report for report in abnormal if report.outcome == "failed"]
    own_failures = [report for report in failed if not report.blames_peer]
    killed = [report for report in abnormal if report.outcome == "killed"]
    if own_failures or killed:
        return JobEnd("crashed", began_s, (own_failures or killed)[0], num_reported=len(exits))
    if unclear and (failed or _moment(unclear[0]) < _moment(first)):
        began_s = min(unclear[0].at_s, began_s)
        return JobEnd("crashed", began_s, unclear[0], num_reported=len(exits))
    lost = sorted((worker, host or "") for worker, host in seen if worker not in workers)
    if not lost and failed and len(workers) == num_workers - 1:
        all_workers = {divmod(number, pp_size) for number in range(num_workers)}
        lost = [(worker, "") for worker in all_workers - workers]
    if lost:
        worker, host = lost[0]
        cause = RankExit(-1, *worker, host or None, "killed", began_s)
        return JobEnd("crashed", began_s, cause, is_lost=True, num_reported=len(exits))
    if first.outcome == "failed":
        return JobEnd("crashed", began_s, first, num_reported=len(exits))
    # The first rank was asked to end; others failed because of it before they were asked.
    return JobEnd("preempted", began_s, first, num_reported=len(abnormal) - len(failed))


def _moment(report: RankExit) -> tuple[float, int]:
    return report.at_s, report.rank


_MAX_MESSAGE_CHARS = 160  # of an exception's message in a sentence


def end_sentence(cause: EndCause) -> str:
    """The sentence about the end of a job, without a full stop; texts of the job are isolated."""
    culprit = formatting.culprit_name(
        host=cause.host or None,
        rank=None if cause.rank < 0 else cause.rank,
        dp_rank=cause.dp_rank,
        stage=cause.stage,
    )
    number = cause.signal
    match cause.outcome:
        case "failed":
            return f"{culprit} {_failure(cause)}"
        case "terminated":
            ranks = formatting.plural(cause.num_reported, "rank")
            how = "by hand" if number == Signals.SIGINT else (
                "as by preemption, a time limit or a cancelled job"
            )  # fmt: skip
            return f"{ranks} got {_signal_name(number)}, {how}"
    if cause.is_lost:
        return f"{culprit} was lost without a word, and the other ranks ended after it"
    if number is None:
        return (
            f"{culprit} ended without a word: killed, out of memory, by an error in native code, "
            "or by os._exit"
        )
    hint = " (perhaps out of memory)" if number == Signals.SIGKILL else ""
    return f"{culprit} was killed by {_signal_name(number)}{hint}"


def _failure(cause: EndCause) -> str:
    kind, message = cause.error_type, cause.message or ""
    message = " ".join("".join(c if c.isprintable() else " " for c in message).split())
    if len(message) > _MAX_MESSAGE_CHARS:
        message = f"{message[: _MAX_MESSAGE_CHARS - 1]}\u2026"
    if kind is None and not message:
        return "failed" if cause.exit_code is None else f"exited with status {cause.exit_code}"
    texts = [formatting.bidi_isolated(text) for text in (kind, message) if text]
    return f"{'raised' if kind else 'failed:'} {': '.join(texts)}"


def _signal_name(number: int | None) -> str:
    try:
        return "a signal" if number is None else Signals(number).name
    except ValueError:
        return f"signal {number}"


def exits_of(rows: Iterable[Mapping[str, Any]]) -> list[RankExit]:
    """The reports in rows of the store."""
    # SQLAlchemy's column names are of a subclass of str, which msgspec refuses.
    plain = [{str(name): value for name, value in row.items()} for row in rows]
    return msgspec.convert(plain, list[RankExit])

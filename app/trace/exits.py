"""How the processes of a run ended, and what that says of the job: finished, crashed or preempted.

When one rank fails, its peers fail after it, or their launcher ends them. So the cause is the first
failure that is not of a broken connection; without one, the rank that was killed, or lost, or the
signal that came before all failures.

Of some ranks it is known that they ended, but not how: they are judged by the others. Beside peers
that finished they have, too; beside peers that failed or were asked to end after them, they were
killed. Where nobody knows of any rank, a kill is likelier than an end by `os._exit`.
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

# Of exceptions that a rank raises since another one has gone.
_OF_PEERS = (
    *("nccl", "gloo", "closed by peer", "reset by peer", "connection refused", "broken pipe"),
    *("distbackenderror", "distnetworkerror", "diststoreerror", "processgroup", "tcpstore"),
    *("remote process exited", "collective operation timeout", "childfailederror"),
)


@dataclass(frozen=True, slots=True)
class RankExit:
    """How one rank's process ended; None is unknown.

    `failed`: by an exception or a status; `terminated`: by a signal that asks to end; `killed`: by
    another one; `ended`: without a word, and nobody knows how. `at_s` is the Unix time of that
    report.
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
        """Its position in the job."""
        return self.dp_rank, self.stage

    @property
    def blames_peer(self) -> bool:
        """Whether it failed since another rank had gone."""
        text = f"{self.error_type} {self.message}".lower()
        return self.outcome == "failed" and any(each in text for each in _OF_PEERS)


class EndCause(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that ended a job, as it is stored; None is unknown, as is a negative rank.

    `is_lost` as of `JobEnd`; `num_reported` ranks said how they ended.
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
    """How a job ended and when; `cause` is the rank that did it, None where all went well.

    `is_lost`: the cause itself reported nothing, so that its rank is not known for sure.
    """

    ended_as: EndedAs
    at_s: float
    cause: RankExit | None = None
    is_lost: bool = False
    num_reported: int = 0

    @property
    def end_cause(self) -> EndCause | None:
        """What is stored of the cause."""
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
    """How the job has ended by these reports; None while it may go on.

    `is_quiet`: nothing more has come for a while. `seen` are workers that have sent data, with
    their hosts: one of them that does not report was lost. So was the only one that does not,
    where others have failed since a peer had gone.
    """
    workers = {each.worker for each in exits}
    if not exits or not (is_quiet or len(workers) >= num_workers):
        return None
    told = sorted(exits, key=_moment)
    bad = [each for each in told if each.outcome not in ("finished", "ended")]
    unclear = [each for each in told if each.outcome == "ended"]
    if not bad and len(unclear) == len(told):
        return JobEnd("crashed", unclear[0].at_s, unclear[0], num_reported=len(exits))
    if not bad:
        return JobEnd("finished", max(each.at_s for each in exits))
    own = [each for each in bad if each.outcome == "failed" and not each.blames_peer]
    killed = [each for each in bad if each.outcome == "killed"]
    if own or killed:
        return JobEnd("crashed", bad[0].at_s, (own or killed)[0], num_reported=len(exits))
    failed = [each for each in bad if each.outcome == "failed"]
    if unclear and (failed or _moment(unclear[0]) < _moment(bad[0])):
        began_s = min(unclear[0].at_s, bad[0].at_s)
        return JobEnd("crashed", began_s, unclear[0], num_reported=len(exits))
    lost = sorted((worker, host or "") for worker, host in seen if worker not in workers)
    if not lost and failed and len(workers) == num_workers - 1:
        everyone = {divmod(number, pp_size) for number in range(num_workers)}
        lost = [(worker, "") for worker in everyone - workers]
    if lost:
        worker, host = lost[0]
        gone = RankExit(-1, *worker, host or None, "killed", bad[0].at_s)
        return JobEnd("crashed", bad[0].at_s, gone, is_lost=True, num_reported=len(exits))
    if failed and bad[0].outcome == "failed":
        return JobEnd("crashed", bad[0].at_s, failed[0], num_reported=len(exits))
    # Ranks that were not asked to end yet fall over the first one that was.
    return JobEnd("preempted", bad[0].at_s, bad[0], num_reported=len(bad) - len(failed))


def _moment(each: RankExit) -> tuple[float, int]:
    return each.at_s, each.rank


_MAX_WORDS = 160  # of an exception's message in a sentence


def end_sentence(cause: EndCause) -> str:
    """What ended a job; no full stop. Texts of the training are data."""
    who = formatting.culprit_name(
        host=cause.host or None,
        rank=None if cause.rank < 0 else cause.rank,
        dp_rank=cause.dp_rank,
        stage=cause.stage,
    )
    number = cause.signal
    match cause.outcome:
        case "failed":
            return f"{who} {_failure(cause)}"
        case "terminated":
            ranks = formatting.plural(cause.num_reported, "rank")
            how = "by hand" if number == Signals.SIGINT else (
                "as by preemption, a time limit or a cancelled job"
            )  # fmt: skip
            return f"{ranks} got {_signal_name(number)}, {how}"
    if cause.is_lost:
        return f"{who} was lost without a word, and the other ranks ended after it"
    if number is None:
        return (
            f"{who} ended without a word: killed, out of memory, by an error in native code, or by "
            "os._exit"
        )
    hint = " (perhaps out of memory)" if number == Signals.SIGKILL else ""
    return f"{who} was killed by {_signal_name(number)}{hint}"


def _failure(cause: EndCause) -> str:
    kind, message = cause.error_type, _one_line(cause.message or "")
    if kind is None and not message:
        return "failed" if cause.exit_code is None else f"exited with status {cause.exit_code}"
    said = [formatting.bidi_isolated(text) for text in (kind, message) if text]
    return f"{'raised' if kind else 'failed:'} {': '.join(said)}"


def _one_line(text: str) -> str:
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= _MAX_WORDS else f"{words[: _MAX_WORDS - 1]}\u2026"


def _signal_name(number: int | None) -> str:
    try:
        return "a signal" if number is None else Signals(number).name
    except ValueError:
        return f"signal {number}"


def exits_of(rows: Iterable[Mapping[str, Any]]) -> list[RankExit]:
    """From rows of the store."""
    # Names of columns are texts of a class of their own, which msgspec refuses.
    plain = ({str(name): value for name, value in row.items()} for row in rows)
    return [msgspec.convert(row, RankExit) for row in plain]

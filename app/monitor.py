"""Analyse one window: how slow is it, and why? Pure: nothing is read or saved."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import structlog
from msgspec import structs
from structlog.contextvars import bound_contextvars

from app.advice.advise import fix_record, top_fix
from app.advice.facts import Facts
from app.advice.fix import AdviceCase
from app.alerts.facts import WindowFacts
from app.diagnosis.diagnose import Diagnosis, diagnose, without_steps
from app.diagnosis.first_steps import begins_run, judged_replay, was_left_out
from app.diagnosis.job_history import History
from app.diagnosis.observations import observations_without_steps
from app.engine.replays import WindowReplay, prepare
from app.engine.report import Report, analyse_replay, report_result, result_without_figures
from app.engine.step_starts import step_starts_s
from app.errors import InvalidTrace
from app.result.clock_times import with_clock_times
from app.result.window_result import TopFix, WindowResult
from app.trace.imputation import impute
from app.trace.window import SkippedStep, Window

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Observation:
    """The analysis of one revision of a window, which the consumer saves.

    `report` is None if the window has no complete step or cannot be replayed; `result` is there
    either way, with the reason among its skipped steps.
    `facts` are the input of alert rules, and `recent` is what the window adds to the job's history.
    """

    report: Report | None
    result: WindowResult
    facts: WindowFacts
    recent: History | None = None

    @property
    def verdict(self) -> Literal["ok", "low"] | None:
        """Whether the figures can be trusted; None without figures."""
        return self.result.fidelity.verdict


def observe(
    window: Window, history: History | None = None, *, now_s: float | None = None
) -> Observation:
    """Analyse a window; `history` is that of the same run's earlier windows.

    `now_s` is the Unix time: of steps that started later the time of day is not known.
    """
    history = history or History()
    with bound_contextvars(window=window.id, epoch=window.epoch, revision=window.revision):
        report, result, recent = _figures(window, history, now_s)
    facts = WindowFacts(
        window_id=window.id,
        state=window.state,
        verdict=result.fidelity.verdict,
        result=result,
        num_gpus=window.job.num_gpus,
        hosts=window.hosts,
        usual_step_s=history.before(window.first_step).usual_step_s(
            np.array(result.step_time_s.recorded, np.float64)
        ),
    )
    return Observation(report, result, facts, recent)


Figures = tuple[Report | None, WindowResult, History | None]


def _figures(window: Window, history: History, now_s: float | None) -> Figures:
    try:
        window = impute(window)
        if window.steps:
            return analysed(window, history, now_s=now_s)
    except InvalidTrace as error:
        log.warning("window not analysed", name=window.job.name, reason=str(error))
        window = _skipped(window, str(error))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # A bug of Paceline. The operations are kept and the job goes on; the log has the traceback.
        log.exception("window not analysed", name=window.job.name)
        window = _skipped(window, "Paceline failed to analyse the window: its log says how")
    findings, ruled_out = without_steps(window)
    result = structs.replace(
        result_without_figures(window),
        findings=findings,
        ruled_out=ruled_out,
        observations=observations_without_steps(window),
    )
    return None, with_clock_times(result, history.clock()), None


@dataclass(frozen=True, slots=True)
class Analysis:
    """An analysed replay: its figures, the causes and the result that says both.

    `judged` is the replay without the first steps of the run, by which causes are judged.
    `diagnosis` is None if the diagnosis failed.
    """

    judged: WindowReplay
    report: Report
    diagnosis: Diagnosis | None
    result: WindowResult


def analysed(
    window: Window, history: History | None = None, *, now_s: float | None = None
) -> tuple[Report, WindowResult, History | None]:
    """Report, result and added history of a window with at least one complete step.

    `history` is that of earlier windows. The added history is None if the diagnosis failed; `now_s`
    as in `observe`.

    Raises:
        InvalidTrace: no step can be replayed; the message names the operations.
    """
    analysis = analysis_of(prepare(window), history or History(), now_s=now_s)
    added = None if analysis.diagnosis is None else analysis.diagnosis.new_history
    return analysis.report, analysis.result, added


def analysis_of(replay: WindowReplay, history: History, *, now_s: float | None = None) -> Analysis:
    """Figures and causes of a replay; `now_s` as in `observe`."""
    report = analyse_replay(replay)
    starts_s = step_starts_s(replay.window, replay.clocks, now_s=now_s)
    recorded_s = dict(zip(replay.steps, report.recorded_s.tolist(), strict=True))
    step_times = {
        step: (starts_s[step], took_s) for step, took_s in recorded_s.items() if step in starts_s
    }
    judged, first_steps = replay, None
    try:
        if begins_run(replay, has_history=history.before(replay.steps[0]).num_steps > 0):
            judged, first_steps = judged_replay(replay)
        of_judged = report if judged is replay else analyse_replay(judged)
        diagnosis = diagnose(judged, of_judged, history, first_steps)
    except MemoryError:
        raise
    except Exception:
        # A bug of Paceline. The figures are still valid, and people on call need them. Raised, it
        # would stop the job's other windows. Out of memory is different: the process must end.
        log.exception("window not diagnosed", name=replay.window.job.name)
        return Analysis(judged, report, None, with_clock_times(report_result(report), step_times))
    added = diagnosis.new_history
    started_s = np.array([starts_s.get(step, np.nan) for step in added.steps.tolist()])
    diagnosis = replace(diagnosis, new_history=replace(added, started_s=started_s))
    diagnosed = diagnosis.added_to(report_result(report))
    result = with_clock_times(diagnosed, history.clock() | step_times)
    case = AdviceCase(judged, result, Facts(), diagnosis.repairs)
    return Analysis(judged, report, diagnosis, structs.replace(result, advice=_top_fix(case)))


def _top_fix(case: AdviceCase) -> TopFix | None:
    """The fix that wins most, with what is known without asking; None in an open window."""
    if case.replay.window.state == "open" or not case.result.findings:
        return None
    try:
        fix = top_fix(case)
    except MemoryError:
        raise
    except Exception:
        # A bug of Paceline, as above: figures and causes are valid without advice.
        log.exception("window not advised on", name=case.replay.window.job.name)
        return None
    return None if fix is None else fix_record(fix)


def stored_advice_case(replay: WindowReplay, result: WindowResult, facts: Facts) -> AdviceCase:
    """A window whose result is known, as fixes are given it."""
    judged = judged_replay(replay)[0] if was_left_out(result) else replay
    return AdviceCase(judged, result, facts)


def advice_case(replay: WindowReplay, facts: Facts) -> AdviceCase:
    """A window that is analysed by itself, as fixes are given it.

    Raises:
        InvalidTrace: its causes cannot be diagnosed; the log says why.
    """
    analysis = analysis_of(replay, History())
    if analysis.diagnosis is None:
        raise InvalidTrace("the window's causes could not be diagnosed: the log says why")
    return AdviceCase(analysis.judged, analysis.result, facts, analysis.diagnosis.repairs)


def _skipped(window: Window, reason: str) -> Window:
    """The window with all of its steps skipped, for the same reason."""
    skipped = [*window.skipped, *(SkippedStep(step, reason) for step in window.steps)]
    in_order = sorted(skipped, key=lambda skipped_step: skipped_step.step)
    return replace(window, steps=(), skipped=tuple(in_order))

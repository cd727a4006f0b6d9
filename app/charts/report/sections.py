"""Sections of a report beside its charts: figures, findings, ruled-out causes, tables."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from app import formatting
from app.charts.base.figure import Cell, FigureTable
from app.charts.job.waits import cost_text, remarks
from app.result import causes
from app.result.causes import cause_name
from app.result.figures import MAX_DISCREPANCY
from app.result.finding import OLD_HIDDEN_COST, Finding
from app.result.record import Json
from app.result.window_result import WindowResult, mean_s, num_steps
from app.result.words import WAITS_NOT_RECORDED, observed

Row = tuple[str, str, str]

_MAX_SKIPPED = 12
_HOURS_A_DAY = 24


def stats(result: WindowResult) -> str:
    """The strip of figures with their meaning."""
    cells = ""
    for label, figure, note in _stat_rows(result):
        look = "figure is-unknown" if figure == formatting.NOT_MEASURED else "figure"
        cells += f'<div><dt>{escape(label)}</dt><dd class="{look}">{escape(figure)}</dd>'
        cells += f"<dd>{escape(note)}</dd></div>"
    return f'<dl class="stats">{cells}</dl>'


def _stat_rows(result: WindowResult) -> list[Row]:
    recorded = formatting.seconds(mean_s(result, "recorded"))
    ideal = formatting.seconds(mean_s(result, "ideal"))
    wasted = max(0.0, result.gpu_time_wasted or 0.0)
    a_day = formatting.gpu_hours(_HOURS_A_DAY * result.job.world_size * wasted)
    slowdown = formatting.measured(result.slowdown, formatting.ratio)
    wasted_share = formatting.measured(result.gpu_time_wasted, formatting.percent)
    lost = formatting.measured(result.gpu_hours_lost, "{:z,.3g} GPU-h".format)
    return [
        ("Slowdown", slowdown, f"recorded {recorded} per step, {ideal} without stragglers"),
        ("GPU time wasted", wasted_share, f"{a_day} per day"),
        ("Lost in these steps", lost, _steps(result)),
        _won_back(result),
        _fidelity(result),
        _clocks(result),
    ]


def _won_back(result: WindowResult) -> Row:
    """What fixing the slowest workers, or the last stage, would win back: at most all of it."""
    by_worker, by_stage = result.m_w, result.m_s
    leading = result.findings[0].cause if result.findings else ""
    is_of_stage = leading == causes.STAGE_IMBALANCE
    label = "Won back by last stage" if is_of_stage else "Won back by worker"
    share, other = (by_stage, by_worker) if is_of_stage else (by_worker, by_stage)
    if share is not None and share > 1:
        return label, _share(share), "all of the loss: the ideal is a mean that the fault raises"
    if is_of_stage:
        return label, _share(share), f"the slowest 3 % of workers {_share(other)}"
    alone = f"; last stage alone {_share(other)}" if len(result.stage_share or ()) > 1 else ""
    return label, _share(share), f"by fixing the slowest 3 % of workers{alone}"


def _fidelity(result: WindowResult) -> Row:
    word = "low, over the" if result.fidelity.verdict == "low" else "good,"
    if result.wait_coverage == 0:
        return "Fidelity", "low", WAITS_NOT_RECORDED
    discrepancy = result.fidelity.discrepancy
    off = formatting.measured(discrepancy, lambda share: f"{formatting.percent(share)} off")
    return "Fidelity", off, f"{word} limit {formatting.percent(MAX_DISCREPANCY)}"


def _clocks(result: WindowResult) -> Row:
    known = formatting.measured(result.clocks.residual_ms, "{:.2g} ms".format)
    return "Clock residual", known, result.clocks.reason or "after correction"


def measured_steps(result: WindowResult) -> str:
    """Which steps were analysed, and which were skipped."""
    skipped = [
        f"step {formatting.count(record.step)}: {formatting.bidi_isolated(record.reason)}"
        for record in result.skipped_steps
    ]
    more = len(skipped) - _MAX_SKIPPED
    rest = [f"and {formatting.count(more)} more"] if more > 0 else []
    skipped_words = "; ".join([*skipped[:_MAX_SKIPPED], *rest]) or "none"
    rows = [("Steps", _steps(result)), ("Skipped", skipped_words)]
    return f'<section class="card"><h2>Data used</h2>{fact_list(rows)}</section>'


def _steps(result: WindowResult) -> str:
    steps = result.steps
    first, last = formatting.count(steps[0]), formatting.count(steps[-1])
    stretch = f"{first} to {last}" if len(steps) > 1 else f"step {first}"
    return f"{formatting.plural(num_steps(result), 'step')}, {stretch}"


def table(content: FigureTable) -> str:
    """A chart's figures as a table."""
    caption = f"<caption>{escape(content['caption'])}</caption>" if "caption" in content else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in content["columns"])
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in content["rows"])
    return f'<div class="table"><table>{caption}<tr>{head}</tr>{rows}</table></div>'


def _cell(value: Cell) -> str:
    return f"<td>{'' if value is None else escape(formatting.bidi_isolated(str(value)))}</td>"


def fact_list(rows: Iterable[tuple[str, str]]) -> str:
    """Names and their values; those without one are left out."""
    text = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows if value)
    return f'<dl class="facts">{"".join(text)}</dl>'


def _share(share: float | None) -> str:
    return formatting.measured(share, lambda known: formatting.percent(min(1.0, known)))


_MAX_CULPRITS = 3
_MAX_LISTED = 12


def findings(result: WindowResult) -> str:
    """Each cause with its share of the loss, its sentence and its evidence."""
    causes_shown = result.findings
    if causes_shown is None:
        body = "<p>The data allow no diagnosis: see the checked causes under Details.</p>"
    elif not causes_shown:
        sentences = remarks(result) or ["Nothing stands out."]
        body = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    else:
        num_stages = len(result.stage_share or ())
        body = f"<ol>{''.join(_finding(finding, num_stages) for finding in causes_shown)}</ol>"
    facts = [fact for fact in observed(result) if escape(fact) not in body]
    body += "".join(f'<p class="remark">{escape(fact)}</p>' for fact in facts)
    note = '<p class="note">Causes may overlap.</p>' if len(causes_shown or ()) > 1 else ""
    return f'<section class="card findings"><h2>Findings</h2>{note}{body}</section>'


# As BASES of the page (findings-card.js).
_BASES = {
    "recorded": "rows of the recording",
    "concluded": "timings: no row says it",
    "not-recorded": "what was not recorded",
}


def _finding(finding: Finding, num_stages: int) -> str:
    sure = formatting.confidence(finding.confidence)
    end = finding.end_step
    until = "" if end is None else _when(end, finding.ended_at)
    basis = _BASES.get(finding.basis or "", "")
    facts = [("Since", _since(finding)), ("Until", until), ("Rests on", basis)]
    for name, value in finding.evidence.items():
        if name == OLD_HIDDEN_COST:
            continue
        is_waits = name == "arrivals" and isinstance(value, Mapping)
        label = name.replace("_", " ").replace("-", " ").capitalize()
        facts.append((label, _waits(value) if is_waits else _text(value)))
    after = "".join(f"<p>{escape(near.sentence)}</p>" for near in finding.after or ())
    costs = cost_text(finding)
    share = "no figure" if costs is None else f"<b>{escape(costs)}</b> of GPU time"
    return (
        f'<li><p class="share">{share}</p><div><h3>{escape(_title(finding, num_stages))}</h3>'
        f'<p>{escape(_sentence(finding.sentence))}</p>{after}<p class="sure">{sure}</p>'
        f"<details><summary>Evidence</summary>{fact_list(facts)}</details></div></li>"
    )


def _since(finding: Finding) -> str:
    if finding.onset_step is not None:
        return _when(finding.onset_step, finding.onset_at)
    if finding.onset_by_step is not None:
        return f"step {formatting.count(finding.onset_by_step)} or before"
    return "before recording began"


def _when(step: int, at: str | None) -> str:
    """Date, time and step, as a report may be read much later."""
    return formatting.since_words(step, formatting.unix_time(at), now_s=0.0)


def _title(finding: Finding, num_stages: int) -> str:
    culprits = finding.culprits
    is_last = len(culprits) == 1 and culprits[0].stage == num_stages - 1 > 0
    cause = formatting.upper_first(cause_name(finding.cause, is_last_stage=is_last))
    named = [culprit.name(names_unknown_host=True) for culprit in culprits[:_MAX_CULPRITS]]
    more = len(culprits) - len(named)
    where = [words for words in (*named, f"{more} more" if more > 0 else "") if words]
    return f"{cause}: {'; '.join(where)}" if where else cause


def ruled_out(result: WindowResult) -> str:
    """Causes that were ruled out, and those that the data do not allow to judge."""
    parts = []
    for title, is_unjudged in (("Ruled out", False), ("Undecided", True)):
        rows = [
            (formatting.upper_first(cause_name(denied.cause)), _sentence(denied.reason))
            for denied in result.ruled_out or ()
            if denied.insufficient is is_unjudged
        ]
        parts += [f"<h2>{title}</h2>{fact_list(rows)}"] if rows else []
    return f'<section class="card">{"".join(parts)}</section>' if parts else ""


def _sentence(text: str) -> str:
    sentence = formatting.with_times_sign(formatting.bidi_isolated(text)).removesuffix(".")
    return f"{sentence if sentence.startswith('dp ') else formatting.upper_first(sentence)}."


def _waits(arrivals: Mapping[str, Json]) -> str:
    """How long and how often the others waited, and the own delay in it."""
    waited, own_s = formatting.seconds(arrivals["waited_for_s"]), arrivals["own_delay_s"]
    share, late, steps = (
        formatting.percent(arrivals[name]) for name in ("share", "late_share", "steps_late")
    )
    own = "" if own_s is None else f"; its own delay is {formatting.seconds(max(0.0, own_s))}"
    return (
        f"the others wait {waited} a step for it, {share} of it; late to {late} of its "
        f"collectives, in {steps} of the steps{own}"
    )


def _text(value: Json) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return formatting.count(value)
        case float():
            return f"{value:,.4g}"
        case Mapping():
            named = ((formatting.bidi_isolated(str(key)), _text(value[key])) for key in value)
            return _listed([" ".join(pair) for pair in named])
        case str():
            return formatting.bidi_isolated(value)
        case Sequence():
            return _listed([_worker(item) or _text(item) for item in value])
    return formatting.bidi_isolated(str(value))


def _worker(value: Json) -> str:
    """A pair of dp rank and stage in words; "" where the value is none."""
    match value:
        case [int(dp_rank), int(stage)]:
            return f"dp {dp_rank} stage {stage}"
    return ""


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MAX_LISTED
    rest = [f"{formatting.count(more)} more"] if more > 0 else []
    return ", ".join([*texts[:_MAX_LISTED], *rest])

"""What a report says of causes: who is to blame, how sure that is, and what was ruled out."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from app import words
from app.charts.arrivals import cost, remarks
from app.charts.report_parts import facts

Result = Mapping[str, Any]

_CONFIDENCES = ((0.8, "high confidence"), (0.6, "medium confidence"), (0.0, "low confidence"))
_MAX_CULPRITS = 3
_MAX_PLACES = 12


def findings(result: Result) -> str:
    """Each cause with its share of the loss, its sentence and its evidence."""
    found = result["findings"]
    if found is None:
        body = "<p>Nothing can be told: see what was looked at.</p>"
    elif not found:
        said = remarks(result) or ["Nothing stands out."]
        body = "".join(f"<p>{escape(each)}</p>" for each in said)
    else:
        body = f"<ol>{''.join(map(_finding, found))}</ol>"
    note = '<p class="told">Causes may overlap.</p>' if len(found or ()) > 1 else ""
    return f'<section class="card findings"><h2>Findings</h2>{note}{body}</section>'


def _finding(found: Mapping[str, Any]) -> str:
    sure = next(text for least, text in _CONFIDENCES if found["confidence"] >= least)
    onset = found["onset_step"]
    since = "before what is known" if onset is None else f"step {words.whole(onset)}"
    evidence = ((_label(name), _evidence(name, value)) for name, value in found["evidence"].items())
    return (
        f'<li><p class="share">{_cost(found)}</p><div><h3>{escape(_title(found))}</h3>'
        f'<p>{escape(_sentence(found["sentence"]))}</p><p class="sure">{sure}</p>'
        f"<details><summary>Evidence</summary>{facts([('Since', since), *evidence])}</details>"
        "</div></li>"
    )


def _cost(found: Mapping[str, Any]) -> str:
    share = found["evidence"].get("share_of_loss")
    if share is not None and not found.get("cost_range"):
        return f"<b>{escape(words.percent(share))}</b> of loss"
    costs = cost(found)
    return "no figure" if costs is None else f"<b>{escape(costs)}</b> of GPU time"


def _title(found: Mapping[str, Any]) -> str:
    cause = found["cause"].replace("-", " ").capitalize()
    named = [_place(each) for each in found["culprits"][:_MAX_CULPRITS]]
    more = len(found["culprits"]) - len(named)
    where = [each for each in (*named, f"{more} more" if more > 0 else "") if each]
    return f"{cause}: {', '.join(where)}" if where else cause


def _place(culprit: Mapping[str, Any]) -> str:
    axes = (("dp", "dp_rank"), ("stage", "stage"))
    known = [f"{word} {culprit[key]}" for word, key in axes if culprit.get(key) is not None]
    host = words.contained(culprit["host"]) if culprit.get("host") else ""
    return words.gpu(culprit.get("rank"), ", ".join(known), host, culprit.get("local_rank"))


def ruled_out(result: Result) -> str:
    """What was looked at and not found, and what cannot be told."""
    others = result["ruled_out"] or ()
    parts = []
    for title, is_untold in (("Looked at and ruled out", False), ("Cannot be told", True)):
        chosen = [each for each in others if each["insufficient_evidence"] is is_untold]
        rows = [(_label(each["cause"]), _sentence(each["reason"])) for each in chosen]
        parts += [f"<h2>{title}</h2>{facts(rows)}"] if rows else []
    return f'<section class="card">{"".join(parts)}</section>' if parts else ""


def _sentence(text: str) -> str:
    said = words.signs(words.contained(text)).removesuffix(".")
    first = said[:1] if said.startswith("dp ") else said[:1].upper()
    return f"{first}{said[1:]}."


def _label(name: str) -> str:
    return name.replace("_", " ").replace("-", " ").capitalize()


def _evidence(name: str, value: Any) -> str:
    return _waits(value) if name == "arrivals" and isinstance(value, Mapping) else _text(value)


def _waits(arrivals: Mapping[str, Any]) -> str:
    """How long the others waited, how often, and how much of that is its own doing."""
    waited, share = words.seconds(arrivals["waited_for_s"]), words.percent(arrivals["share"])
    own_s = arrivals["own_delay_s"]
    own = "" if own_s is None else f"; its own delay is {words.seconds(max(0.0, own_s))}"
    late, steps = words.percent(arrivals["late_share"]), words.percent(arrivals["steps_late"])
    return (
        f"the others wait {waited} a step for it, {share} of it; late to {late} of its "
        f"collectives, in {steps} of the steps{own}"
    )


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return words.whole(value)
        case float():
            return f"{value:,.4g}"
        case Mapping():
            return _listed([f"{words.contained(str(key))} {_text(value[key])}" for key in value])
        case str():
            return words.contained(value)
        case Sequence():
            return _listed([_worker(each) if _is_worker(each) else _text(each) for each in value])
    return words.contained(str(value))


def _is_worker(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and all(isinstance(number, int) for number in value)


def _worker(pair: Sequence[int]) -> str:
    return f"dp {pair[0]} stage {pair[1]}"


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MAX_PLACES
    rest = [f"{words.whole(more)} more"] if more > 0 else []
    return ", ".join([*texts[:_MAX_PLACES], *rest])

"""Figures over all verdicts, and the bars that they are held against."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.strangers.scoring import Verdict

# Least shares, of single faults that cost 5 % and more unless the name says otherwise.
LEAST = {
    "right_first": 0.97,
    "compute_culprits_exact": 0.995,
    "network_culprits_exact": 0.97,
    "both_named": 0.95,
    "onset_within_2": 0.95,
}
MOST = {
    "wrong_names": 0.005,
    "silently_missed": 0.01,
    "false_causes_healthy": 0,
    "innocents_clocks_apart": 0,
    "cost_error_p95_points": 2.0,
    "cost_error_max_points": 5.0,
    "crashed": 0,
}
# Of families: shares over all of their jobs, and of right answers in each.
FAMILIES_MOST = {"wrong_names": 0.005, "silently_missed": 0.03, "abstained": 0.05}
FAMILIES_RIGHT, FAMILY_RIGHT = 0.92, 21 / 25
MAX_FALSE_HEALTHY_KINDS = 2
MAX_CALIBRATION_POINTS, MIN_BIN = 3.0, 50


def figures_of(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """All figures as JSON."""
    groups = defaultdict(list)
    for each in verdicts:
        groups[each.group].append(each)
    counted = [each for each in groups["single"] if each.is_counted]
    healthy, apart = groups["healthy"], groups["apart"]
    outcomes = Counter(each.outcome for each in counted)
    errors = 100 * np.abs([e for each in counted for e in each.cost_errors] or [np.nan])
    pairs = [each for each in groups["pair"] if each.is_counted]
    found = {
        "jobs": {name: len(each) for name, each in groups.items()},
        "counted_single": len(counted),
        "right_first": _share(outcomes["right"], len(counted)),
        "wrong_names": _share(outcomes["wrong"], len(counted)),
        "abstained": _share(outcomes["abstained"], len(counted)),
        "silently_missed": _share(outcomes["missed"], len(counted)),
        "crashed": sum(each.outcome == "crashed" for each in verdicts),
        "compute_culprits_exact": _exact(counted, "compute"),
        "network_culprits_exact": _exact(counted, "network"),
        "host_culprits_exact": _exact(counted, "host"),
        "false_beside": _share(sum(bool(each.false_beside) for each in counted), len(counted)),
        "counted_pairs": len(pairs),
        "both_named": _mean(each.both_named for each in pairs),
        "wrong_names_pairs": _share(sum(e.outcome == "wrong" for e in pairs), len(pairs)),
        "onset_within_2": _mean(each.is_onset_right for each in counted),
        "persistence_right": _mean(each.is_persistence_right for each in counted),
        "cost_error_p50_points": _rounded(np.percentile(errors, 50)),
        "cost_error_p95_points": _rounded(np.percentile(errors, 95)),
        "cost_error_max_points": _rounded(errors.max()),
        "false_causes_healthy": sum(bool(each.named) for each in healthy),
        "false_causes_by_name": dict(Counter(e.cause for each in healthy for e in each.named)),
        "innocents_clocks_apart": sum(each.has_innocents for each in apart),
        "took_s": {
            "p50": _rounded(np.median([each.took_s for each in verdicts])),
            "max": _rounded(max(each.took_s for each in verdicts)),
        },
    }
    return found | {
        "calibration": calibration(verdicts),
        "per_level": {
            level: _outcome_shares(each for each in counted if each.level == level)
            for level in sorted({each.level for each in counted})
        },
        "per_kind": per_kind([*groups["single"], *groups["published"], *groups["family"]]),
        "families": (families := family_figures(groups["family"])),
        "healthy_kinds": (kinds := healthy_figures(groups["healthy-kind"])),
        "missed_bars": missed_bars(found) + families["missed_bars"] + kinds["missed_bars"],
    }


def family_figures(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Outcomes of the families' jobs that count, of all together, and the bars they miss."""
    counted = [each for each in verdicts if each.is_counted]
    outcomes = Counter(each.outcome for each in counted)
    found: dict[str, Any] = {
        "counted": len(counted),
        "right": _share(outcomes["right"], len(counted)),
        "wrong_names": _share(outcomes["wrong"], len(counted)),
        "abstained": _share(outcomes["abstained"], len(counted)),
        "silently_missed": _share(outcomes["missed"], len(counted)),
    }
    missed = [name for name, most in FAMILIES_MOST.items() if (found[name] or 0) > most]
    missed += ["right"] if counted and found["right"] < FAMILIES_RIGHT else []
    for kind, of_kind in per_kind(verdicts).items():
        if of_kind["counted"] and of_kind["right"] / of_kind["counted"] < FAMILY_RIGHT:
            missed.append(f"right: {kind}")
    return found | {"missed_bars": [f"families: {name}" for name in missed]}


def healthy_figures(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """False causes of the healthy kinds' jobs by kind, and the bars they miss."""
    false = [verdict for verdict in verdicts if any(not said.is_right for said in verdict.named)]
    innocents = sum(verdict.has_innocents for verdict in verdicts)
    missed = ["false causes"] if len(false) > MAX_FALSE_HEALTHY_KINDS else []
    missed += ["innocents"] if innocents else []
    return {
        "jobs": len(verdicts),
        "false_causes": len(false),
        "innocents": innocents,
        "by_kind": {
            kind: {
                "jobs": sum(verdict.kinds == (kind,) for verdict in verdicts),
                "false": dict(
                    Counter(
                        said.cause
                        for verdict in false
                        for said in verdict.named
                        if verdict.kinds == (kind,) and not said.is_right
                    )
                ),
            }
            for kind in dict.fromkeys(verdict.kinds[0] for verdict in verdicts)
        },
        "missed_bars": [f"healthy kinds: {name}" for name in missed],
    }


def per_kind(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Outcomes and details of each kind of single fault, of 5 % and more."""
    found: dict[str, Any] = {}
    for kind in dict.fromkeys(each.kinds for each in verdicts):
        mine = [each for each in verdicts if each.kinds == kind]
        counted = [each for each in mine if each.is_counted]
        outcomes = Counter(each.outcome for each in counted)
        found["+".join(kind)] = {
            "jobs": len(mine),
            "counted": len(counted),
            **{name: outcomes[name] for name in ("right", "wrong", "abstained", "missed")},
            "innocents": sum(each.has_innocents for each in counted),
            "culprits": _mean(each.are_culprits_exact for each in counted),
            "onset": _mean(each.is_onset_right for each in counted),
            "persistence": _mean(each.is_persistence_right for each in counted),
            "cost_error_max": _rounded(
                100 * max((abs(e) for each in counted for e in each.cost_errors), default=np.nan)
            ),
            "said_first": dict(Counter(str(each.first_cause) for each in counted)),
            "said_beside": dict(Counter(e for each in counted for e in each.false_beside)),
        }
    return found


def kind_lines(of_kinds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The same as lines of a table, for people."""
    names = ("counted", "right", "wrong", "abstained", "missed", "culprits", "onset", "persistence")
    lines = [" ".join([f"{'kind':30}", *(f"{name[:9]:>9}" for name in names)])]
    for kind, each in of_kinds.items():
        said = {name: count for name, count in each["said_first"].items() if name}
        cells = ("-" if each[name] is None else str(each[name]) for name in names)
        lines.append(" ".join([f"{kind:30}", *(f"{cell[:9]:>9}" for cell in cells), f" {said}"]))
    return lines


def calibration(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Ten bins of confidence as said, and the share of findings that were right."""
    pairs = [(e.confidence, e.is_right) for each in verdicts for e in each.named]
    found = []
    for low in range(10):
        inside = [pair for pair in pairs if low <= min(10 * pair[0], 9.999) < low + 1]
        if inside:
            said, seen = (float(np.mean([pair[k] for pair in inside])) for k in (0, 1))
            found.append(
                {
                    "from": low / 10,
                    "findings": len(inside),
                    "said": round(said, 4),
                    "seen": round(seen, 4),
                    "holds": len(inside) < MIN_BIN
                    or 100 * abs(said - seen) <= MAX_CALIBRATION_POINTS,
                }
            )
    return found


def missed_bars(found: dict[str, Any]) -> list[str]:
    """Names of the bars that do not hold; those without jobs are left out."""
    missed = [n for n, least in LEAST.items() if found[n] is not None and found[n] < least]
    return missed + [n for n, most in MOST.items() if found[n] is not None and found[n] > most]


def _outcome_shares(verdicts: Iterable[Verdict]) -> dict[str, Any]:
    outcomes = Counter(each.outcome for each in verdicts)
    return {name: _share(count, outcomes.total()) for name, count in sorted(outcomes.items())}


def _exact(counted: Sequence[Verdict], area: str) -> float | None:
    return _mean(each.are_culprits_exact for each in counted if each.area == area)


def _mean(values: Iterable[bool | None]) -> float | None:
    known = [each for each in values if each is not None]
    return _share(sum(known), len(known))


def _share(count: int, of: int) -> float | None:
    return round(count / of, 4) if of else None


def _rounded(value: Any) -> float | None:
    return None if np.isnan(value) else round(float(value), 3)

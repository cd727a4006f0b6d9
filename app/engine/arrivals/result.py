"""Arrivals as the JSON block of a result; docs/arrivals.md has the meaning of each key."""

from typing import Any

import numpy as np

from app.engine.arrivals.arrivals import Arrivals
from app.engine.arrivals.blame import LateRank
from app.trace.window import Floats

MAX_GROUPS = 50
MAX_MEMBERS = 16
MAX_RANKS_NAMED = 64
# Ranks with figures of their own, those waited for most.
MAX_RANKS = 256


def as_json(found: Arrivals, kinds: dict[int, str] | None = None) -> dict[str, Any]:
    """The block; `kinds` says by place what a culprit's delay is made of, where that is known."""
    own_s = {each.place: each.own_delay_s for each in found.late}
    waited_for_s = found.waited_for_s.mean(axis=1)
    chosen = np.sort(np.argsort(-waited_for_s, kind="stable")[:MAX_RANKS])
    places = [found.places[at] for at in chosen.tolist()]
    return {
        "num_occurrences": found.occurrences.num_occurrences,
        "num_ranks": len(found.places),
        "waiting_share": found.waiting_share,
        "largest_share": found.largest_share,
        "rank": [place.rank for place in places],
        "dp_rank": [place.dp_rank for place in places],
        "stage": [place.stage for place in places],
        "host": [place.host for place in places],
        "local_rank": [place.local_rank for place in places],
        "waited_for_s": waited_for_s[chosen].tolist(),
        "waited_s": found.waited_s[chosen].mean(axis=1).tolist(),
        "late_share": found.late_share[chosen].tolist(),
        "own_delay_s": [own_s.get(at) for at in chosen.tolist()],
        "groups": groups_as_json(found),
        "culprits": [
            culprit_as_json(found, each, (kinds or {}).get(each.place, "unknown"))
            for each in found.culprits
        ],
        "per_step": {"waited_for_s": found.waited_for_s[chosen].T.tolist()},
    }


def culprit_as_json(found: Arrivals, late: LateRank, kind: str) -> dict[str, Any]:
    """One rank that the others waited for."""
    place, group = found.places[late.place], found.occurrences.groups[late.group]
    return {
        "rank": place.rank,
        "dp_rank": place.dp_rank,
        "stage": place.stage,
        "host": place.host,
        "local_rank": place.local_rank,
        "group": group.name,
        "axis": group.axis,
        "kind": kind,
        "waited_for_s": late.waited_for_s,
        "share": late.waited_for_s / float(found.step_s.mean()),
        "late_share": late.late_share,
        "steps_late": late.steps_late,
        "own_delay_s": late.own_delay_s,
    }


def groups_as_json(found: Arrivals, name: str | None = None) -> list[dict[str, Any]]:
    """Groups whose members wait longest first; the one of a name with all of its members."""
    lost_s = found.lateness.lost_s.mean(axis=1)
    if name is not None:
        return [
            _group(found, at, len(group.ranks))
            for at, group in enumerate(found.occurrences.groups)
            if group.name == name
        ]
    order = np.argsort(-lost_s, kind="stable")[:MAX_GROUPS]
    return [_group(found, int(at), MAX_MEMBERS) for at in order]


def _group(found: Arrivals, at: int, most_members: int) -> dict[str, Any]:
    occurrences, late = found.occurrences, found.lateness
    group = occurrences.groups[at]
    mine = occurrences.group == at
    first, size = int(occurrences.first_seat[at]), int(occurrences.group_size[at])
    seats = slice(first, first + size)
    waited_for_s = late.waited_for_s[seats].mean(axis=1)
    waited_s = late.waited_s[seats].mean(axis=1)
    num = float(late.num_occurrences[at].sum())
    late_share = late.late[seats].sum(axis=1) / max(num, 1.0)
    members = np.argsort(-waited_for_s, kind="stable")[:most_members]
    places = [found.places[each] for each in occurrences.seat_rank[seats].tolist()]
    return {
        "name": group.name,
        "axis": group.axis,
        "ranks": list(group.ranks[:MAX_RANKS_NAMED]),
        "num_ranks": size,
        "num_occurrences": int(num),
        "transfer_s": float(np.median(late.transfer_s[mine])) if mine.any() else None,
        "waited_s": float(waited_s.mean()),
        "bandwidth_bytes_s": _bandwidth(_mean_bytes(found, at), late.transfer_s[mine]),
        "members": [
            {
                "rank": places[member].rank,
                "local_rank": places[member].local_rank,
                "host": places[member].host,
                "waited_for_s": float(waited_for_s[member]),
                "waited_s": float(waited_s[member]),
                "late_share": float(late_share[member]),
            }
            for member in members.tolist()
        ],
    }


def _mean_bytes(found: Arrivals, group: int) -> Floats:
    """[the group's occurrences], mean over members, NaN where one is unknown."""
    occurrences = found.occurrences
    first = occurrences.first_row[occurrences.group == group]
    rows = first[:, None] + np.arange(int(occurrences.group_size[group]))
    return np.asarray(occurrences.num_bytes[rows].mean(axis=1))


def _bandwidth(num_bytes: Any, transfer_s: Any) -> float | None:
    """Bytes of all occurrences that say theirs, by the time that these took."""
    known = np.isfinite(num_bytes) & (transfer_s > 0)
    if not known.any():
        return None
    return float(num_bytes[known].sum() / transfer_s[known].sum())

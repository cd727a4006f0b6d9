"""Successive ends of one set made into one: what is left to be looked at again and again."""

from dataclasses import dataclass

import numpy as np

from app.engine.clocks.lines import Lines
from app.engine.clocks.shared_ends import SharedEnds
from app.engine.compiled import kernel
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Slots:
    """The ends of each slot in one: how far each member is from the others, and when.

    Slot s of set i is `first_slot[i] + s`, the value of its j-th member at
    `first_value[i] + j * slots + s`. `weight` [sets] is how many ends were made into one.
    """

    first_slot: Ints
    first_value: Ints
    apart_ns: Floats
    time: Floats
    weight: Floats

    def moments(self) -> Floats:
        """[sets, 3], sums over a set's slots of weight, weight * time and weight * time ** 2."""
        powers = (np.ones_like(self.time), self.time, self.time**2)
        firsts = self.first_slot[:-1]
        sums = [np.add.reduceat(each, firsts) * self.weight for each in powers]
        return np.stack(sums, axis=1)


def in_slots(shared: SharedEnds, found: Lines) -> Slots:
    """The ends, corrected by the lines that were found so far."""
    num_slots = shared.num_times // shared.per_slot
    num_members = np.diff(shared.first_member)
    first_slot = np.concatenate(([0], np.cumsum(num_slots)))
    first_value = np.concatenate(([0], np.cumsum(num_slots * num_members)))
    apart_ns, time = np.empty(first_value[-1]), np.empty(first_slot[-1])
    _in_slots(
        shared.first_member, shared.host, shared.num_times, shared.per_slot, shared.first_end,
        shared.end_ns, found.offset_ns, found.origin_ns, found.middle_ns, found.half_ns,
        found.coefficients, first_slot, first_value, apart_ns, time,
    )  # fmt: skip
    return Slots(first_slot, first_value, apart_ns, time, shared.per_slot.astype(np.float64))


@kernel
def _in_slots(  # type: ignore[no-untyped-def]
    first_member, host, num_times, per_slot, first_end, end_ns, offset_ns, origin_ns, middle_ns,
    half_ns, coefficients, first_slot, first_value, apart_ns, time,
):  # fmt: skip
    """Of each member and slot, the median of how far its ends are from the members' mean.

    Less the members' median of that, so that one which is late by much moves no other.
    """
    for each in range(num_times.size):
        first, end, times = first_member[each], first_member[each + 1], num_times[each]
        slots = times // per_slot[each]
        mean_ns, mean_time = np.zeros(times), np.zeros(times)
        far_ns, medians_ns = np.empty((end - first, times)), np.empty(end - first)
        sorted_ns = np.empty(per_slot[each])
        for member in range(end - first):
            of = host[first + member]
            bias_ns, slope_ns = coefficients[of, 0], coefficients[of, 1]
            at = first_end[each] + member * times
            for k in range(times):
                since_ns = np.float64(end_ns[at + k] - origin_ns - offset_ns[of])
                when = (since_ns - middle_ns) / half_ns
                far_ns[member, k] = since_ns - bias_ns - slope_ns * when
                mean_ns[k] += far_ns[member, k] / (end - first)
                mean_time[k] += when / (end - first)
        for slot in range(slots):
            low, high = slot * per_slot[each], (slot + 1) * per_slot[each]
            time[first_slot[each] + slot] = np.mean(mean_time[low:high])
            for member in range(end - first):
                medians_ns[member] = _median(far_ns[member], mean_ns, low, high, sorted_ns)
            centre_ns = np.median(medians_ns) if end - first > 2 else 0.0
            for member in range(end - first):
                value = first_value[each] + member * slots + slot
                apart_ns[value] = medians_ns[member] - centre_ns


@kernel
def _median(far_ns, mean_ns, low, high, sorted_ns):  # type: ignore[no-untyped-def]
    """Of a few differences, by sorting them in."""
    for at in range(low, high):
        value, place = far_ns[at] - mean_ns[at], at - low
        while place > 0 and sorted_ns[place - 1] > value:
            sorted_ns[place] = sorted_ns[place - 1]
            place -= 1
        sorted_ns[place] = value
    size = high - low
    return 0.5 * (sorted_ns[(size - 1) // 2] + sorted_ns[size // 2])

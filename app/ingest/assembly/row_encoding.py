"""Rows of times, compressed together: a few bytes a row, most of them unpredictable noise.

Rows come in segments: those of one worker in one step, say. Segments of equal shape (the same
operations in the same order) share a template of places, which is stored once. The start of each
place is predicted from the start or the end of another that usually comes shortly before it, its
duration from their median; only the residues are stored, sorted into classes by their size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.ingest.assembly.int_packing import (
    DamagedRows,
    Ints,
    PackedInts,
    pack_ints,
    pack_residues,
    unpack_ints,
)

# Parts of at most so many rows (but for a larger segment) are encoded by themselves, so that their
# copies are small beside the window.
MAX_PART_ROWS = 1_000_000
# Templates of fewer segments are not worth medians of their own.
_MIN_SEGMENTS = 8
_SAMPLE_SEGMENTS = 24
_MAX_LAG = 6  # how many places before a place its predecessor is looked for
_NUM_CLASSES = 16
_CHUNK_ROWS = 1 << 16  # of one template at a time, which fit into the CPU's cache
_HASH_FACTOR = np.int64(-7046029254386353131)  # odd, with bits everywhere


Dtypes = Mapping[str, type[np.generic]]
Times = Callable[[Ints, Ints], tuple[Ints, Ints]]


@dataclass(frozen=True, slots=True, eq=False)
class TimedRows:
    """Rows of segments.

    Shapes: all [rows]. `keys` are constant within a segment, whose rows follow on each other;
    `shape` is what segments have in common; durations are alike where its first column is the same.
    Times are in any unit.
    """

    keys: Mapping[str, NDArray[Any]]
    shape: Mapping[str, NDArray[Any]]
    start: Ints
    end: Ints

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.start.size)


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Which template each segment has.

    Shapes: `firsts`, `sizes`, `template_of` [segments]; `place_firsts`, `lengths`, `num_segments`
    [templates].
    """

    firsts: Ints
    sizes: Ints
    template_of: Ints
    place_firsts: Ints
    lengths: Ints
    num_segments: Ints

    @classmethod
    def of(cls, sizes: Ints, template_of: Ints) -> "_Layout":
        """From what is stored of the segments."""
        num_templates = int(template_of.max()) + 1 if template_of.size else 0
        num_segments = np.bincount(template_of, minlength=num_templates)
        lengths = np.zeros(num_templates, np.int64)
        lengths[template_of] = sizes
        if not num_segments.all() or (lengths[template_of] != sizes).any():
            raise DamagedRows("stored segments have other sizes than their templates")
        firsts = np.cumsum(sizes) - sizes
        return cls(firsts, sizes, template_of, np.cumsum(lengths) - lengths, lengths, num_segments)

    @property
    def num_places(self) -> int:
        """Places of all templates together."""
        return int(self.lengths.sum())

    @property
    def regular(self) -> list[int]:
        """Templates with enough segments for medians of their own."""
        return np.flatnonzero(self.num_segments >= _MIN_SEGMENTS).tolist()

    @property
    def rare(self) -> Ints:
        """Segments of the other templates."""
        return np.flatnonzero(self.num_segments[self.template_of] < _MIN_SEGMENTS)

    def places(self, template: int) -> slice:
        """The places of a template."""
        first = int(self.place_firsts[template])
        return slice(first, first + int(self.lengths[template]))

    def firsts_of(self, template: int) -> Ints:
        """The first row of each segment of a template."""
        firsts: Ints = self.firsts[self.template_of == template]
        return firsts

    def chunks(self, template: int, firsts: Ints) -> Iterator[tuple[slice, Ints]]:
        """Some segments at a time of those of a template that begin at `firsts`."""
        size = max(1, _CHUNK_ROWS // int(self.lengths[template]))
        for at in range(0, firsts.size, size):
            part = slice(at, at + size)
            yield part, firsts[part]

    def expanded(self, segments: Ints) -> tuple[Ints, Ints, Ints]:
        """For all rows of these segments: number within it, first place, first row."""
        sizes = self.sizes[segments]
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        first_places = np.repeat(self.place_firsts[self.template_of[segments]], sizes)
        return within, first_places, np.repeat(self.firsts[segments], sizes)


@dataclass(frozen=True, slots=True, eq=False)
class _Predictors:
    """How the times of each place are predicted; places of a template in the order of their starts.

    Shapes: all [places]. `order` is the row within the segment; `lag` how many places before it the
    predecessor is (0 for the first, whose start is stored), `after_end` whether its end counts;
    `start_offset` and `duration` are medians; the classes are those of the residues.
    """

    order: Ints
    lag: Ints
    after_end: Ints
    start_offset: Ints
    duration: Ints
    start_class: Ints
    duration_class: Ints

    @classmethod
    def empty(cls, num_places: int) -> "_Predictors":
        """All of them zero."""
        return cls(*(np.zeros(num_places, np.int64) for _ in fields(cls)))

    def check(self, layout: _Layout) -> None:
        """Raise `DamagedRows` if they name rows that are not there."""
        template = np.repeat(np.arange(layout.lengths.size), layout.lengths)
        within = np.arange(template.size) - np.repeat(layout.place_firsts, layout.lengths)
        by_order = np.lexsort((self.order, template))
        first_is_bad = ((self.lag == 0) != (within == 0)).any()
        classes = np.concatenate((self.start_class, self.duration_class))
        if (
            (self.order[by_order] != within).any()
            or first_is_bad
            or (self.lag > within).any()
            or (self.lag < 0).any()
            or ((classes < 0) | (classes >= _NUM_CLASSES)).any()
        ):
            raise DamagedRows("stored predictions name places that are not there")


class _ResidueWriter:
    """Residues by class, in the order in which they are written."""

    def __init__(self) -> None:
        self._parts: list[list[Ints]] = [[] for _ in range(_NUM_CLASSES)]

    def write(self, classes: Ints, residues: Ints) -> None:
        """Add residues [places, segments], or [rows], whose first axis has these classes."""
        for number in np.unique(classes).tolist():
            self._parts[number].append(residues[classes == number].ravel())

    def packed(self) -> list[PackedInts]:
        """By class: the number of residues, and these."""
        joined = [np.concatenate([np.empty(0, np.int64), *parts]) for parts in self._parts]
        return [[residues.size, *pack_residues(residues)] for residues in joined]


class _ResidueReader:
    """The same, read in the same order."""

    def __init__(self, packed: Sequence[PackedInts], num_rows: int) -> None:
        sizes = [size for size, *_ in packed]
        if len(sizes) != _NUM_CLASSES or min(sizes) < 0 or sum(sizes) > 2 * num_rows:
            raise DamagedRows("stored residues are more than twice the rows")
        self._left = [unpack_ints(residues, size) for size, *residues in packed]

    def read(self, classes: Ints, num_segments: int | None = None) -> Ints:
        """Residues [places, segments], or [rows], whose first axis has these classes."""
        shape = (classes.size,) if num_segments is None else (classes.size, num_segments)
        residues = np.empty(shape, np.int64)
        for number in np.unique(classes).tolist():
            chosen = classes == number
            size = int(chosen.sum()) * (num_segments or 1)
            if self._left[number].size < size:
                raise DamagedRows("stored residues are fewer than the rows")
            residues[chosen] = self._left[number][:size].reshape(-1, *shape[1:])
            self._left[number] = self._left[number][size:]
        return residues


class _Coding(NamedTuple):
    """Times [rows] of a part, and how they are predicted; filled in place."""

    layout: _Layout
    predictors: _Predictors
    start: Ints
    end: Ints


class RowsPart(msgspec.Struct):
    """Rows as msgpack has them: segments, the templates that they share, and residues by class."""

    segments: int
    sizes: PackedInts
    template_of: PackedInts
    keys: dict[str, PackedInts]
    shape: dict[str, PackedInts]
    base: PackedInts
    predictors: dict[str, PackedInts]
    residues: list[PackedInts]


def encode_rows(rows: TimedRows, times: Times | None = None) -> list[RowsPart]:
    """The rows in parts.

    `times` makes the starts and ends that are encoded of those of some rows.
    """
    bounds = _segment_bounds(list(rows.keys.values()), rows.num_rows)
    return [
        _encode_part(rows, bounds[first : end + 1], times)
        for first, end in whole_segments(bounds, MAX_PART_ROWS)
    ]


def decode_rows(parts: Sequence[RowsPart], keys: Dtypes, shape: Dtypes, num_rows: int) -> TimedRows:
    """The rows that `encode_rows` was given, columns in these types.

    Raises:
        DamagedRows: they are another number of rows, or contradict themselves.
    """
    decoded, left = [], num_rows
    for part in parts:
        decoded.append(_decode_part(part, keys, shape, left))
        left -= decoded[-1].num_rows
    if left:
        raise DamagedRows(f"{left} of {num_rows} stored rows are not there")
    return TimedRows(
        {name: _joined([rows.keys[name] for rows in decoded], keys[name]) for name in keys},
        {name: _joined([rows.shape[name] for rows in decoded], shape[name]) for name in shape},
        _joined([rows.start for rows in decoded], np.int64),
        _joined([rows.end for rows in decoded], np.int64),
    )


def _joined(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, dtype), *arrays])


def narrowed(name: str, values: Ints, dtype: type[np.generic]) -> NDArray[Any]:
    """The values in a type; raises DamagedRows if they do not fit."""
    limits = np.iinfo(np.dtype(dtype))
    if values.size and (values.min() < limits.min or values.max() > limits.max):
        raise DamagedRows(f"stored column {name} holds numbers that no row has")
    return values.astype(dtype, copy=False)


def _segment_bounds(keys: Sequence[Ints], num_rows: int) -> Ints:
    """The first row of each segment, then the number of rows."""
    is_bound = np.ones(num_rows + 1, np.bool_)
    is_bound[1:-1] = False
    for values in keys:
        is_bound[1:-1] |= values[1:] != values[:-1]
    return np.flatnonzero(is_bound)


def whole_segments(bounds: Ints, max_rows: int) -> Iterator[tuple[int, int]]:
    """First segment and end of parts of at most so many rows, but for a longer segment.

    `bounds` are the first row of each segment, then the number of rows.
    """
    first, last = 0, bounds.size - 1
    while first < last:
        end = int(np.searchsorted(bounds, bounds[first] + max_rows, side="right")) - 1
        end = max(end, first + 1)
        yield first, end
        first = end


def _encode_part(rows: TimedRows, bounds: Ints, times: Times | None) -> RowsPart:
    part = slice(int(bounds[0]), int(bounds[-1]))
    shape = {name: values[part] for name, values in rows.shape.items()}
    start, end = rows.start[part], rows.end[part]
    if times is not None:
        start, end = times(start, end)
    sizes = np.diff(bounds)
    template_of, examples = _templates(shape, bounds[:-1] - bounds[0], sizes)
    layout = _Layout.of(sizes, template_of)
    within, _, first_rows = layout.expanded(examples)
    example_rows = first_rows + within
    shape = {name: values[example_rows].astype(np.int64) for name, values in shape.items()}
    predictors, residues = _Predictors.empty(layout.num_places), _ResidueWriter()
    coding = _Coding(layout, predictors, start, end)
    for template in layout.regular:
        _encode_regular(coding, template, residues)
    _encode_rare(coding, next(iter(shape.values())), residues)
    base_rows = layout.firsts + predictors.order[layout.place_firsts[template_of]]
    return RowsPart(
        segments=sizes.size,
        sizes=pack_ints(sizes),
        template_of=pack_ints(template_of),
        keys={
            name: pack_ints(values[bounds[:-1]].astype(np.int64))
            for name, values in rows.keys.items()
        },
        shape={name: pack_ints(values) for name, values in shape.items()},
        base=pack_ints(start[base_rows]),
        predictors={
            column.name: pack_ints(getattr(predictors, column.name))
            for column in fields(_Predictors)
        },
        residues=residues.packed(),
    )


def _decode_part(part: RowsPart, keys: Dtypes, shape: Dtypes, max_rows: int) -> TimedRows:
    num_segments = part.segments
    if not 0 < num_segments <= max_rows:
        raise DamagedRows(f"{num_segments} segments are stored for {max_rows} rows")
    sizes = unpack_ints(part.sizes, num_segments)
    template_of = unpack_ints(part.template_of, num_segments)
    are_few = sizes.min() >= 1 and sizes.max() <= max_rows and sizes.sum() <= max_rows
    if not are_few or template_of.min() < 0 or template_of.max() >= num_segments:
        raise DamagedRows("stored segments have more rows than there are")
    layout = _Layout.of(sizes, template_of)
    num_places, num_rows = layout.num_places, int(sizes.sum())
    predictors = _Predictors(
        **{
            column.name: unpack_ints(part.predictors[column.name], num_places)
            for column in fields(_Predictors)
        }
    )
    predictors.check(layout)
    base = unpack_ints(part.base, num_segments)
    start, end = np.empty(num_rows, np.int64), np.empty(num_rows, np.int64)
    residues = _ResidueReader(part.residues, num_rows)
    coding = _Coding(layout, predictors, start, end)
    for template in layout.regular:
        _decode_regular(coding, template, base, residues)
    _decode_rare(coding, base, residues)
    within, first_places, _ = layout.expanded(np.arange(num_segments))
    place_of = first_places + within
    return TimedRows(
        {
            name: np.repeat(
                narrowed(name, unpack_ints(part.keys[name], num_segments), dtype), sizes
            )
            for name, dtype in keys.items()
        },
        {
            name: narrowed(name, unpack_ints(part.shape[name], num_places), dtype)[place_of]
            for name, dtype in shape.items()
        },
        start,
        end,
    )


def _templates(shape: Mapping[str, NDArray[Any]], firsts: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """The template of each segment, and an example segment of each template."""
    hashes = np.arange(int(sizes.sum())) - np.repeat(firsts, sizes)  # the place
    for values in shape.values():
        hashes *= _HASH_FACTOR
        hashes += values
    hashes ^= hashes >> 29  # so that places cannot be exchanged
    hashes *= _HASH_FACTOR
    of_segments = np.add.reduceat(hashes, firsts) ^ sizes
    _, examples, template_of = np.unique(of_segments, return_index=True, return_inverse=True)
    example_rows = np.repeat(firsts[examples[template_of]] - firsts, sizes)
    example_rows += np.arange(example_rows.size)
    is_same = (sizes[examples[template_of]] == sizes).all()
    if is_same and all((values[example_rows] == values).all() for values in shape.values()):
        return template_of, examples
    return np.arange(sizes.size), np.arange(sizes.size)  # two shapes of one hash


def _encode_regular(coding: _Coding, template: int, residues: _ResidueWriter) -> None:
    layout, predictors, start, end = coding
    places, firsts = layout.places(template), layout.firsts_of(template)
    sampled = firsts[np.linspace(0, firsts.size - 1, min(firsts.size, _SAMPLE_SEGMENTS), dtype=int)]
    rows = sampled + np.arange(layout.lengths[template])[:, None]
    order = np.argsort(_medians(start[rows] - start[rows].min(axis=0)), kind="stable")
    _choose(predictors, places, start[rows[order]], end[rows[order]])
    predictors.order[places] = order
    before = np.arange(order.size) - predictors.lag[places]
    after_end = predictors.after_end[places] != 0
    after_start = ~after_end
    for _, part in layout.chunks(template, firsts):
        rows = part[:, None] + order
        starts, ends = np.ascontiguousarray(start[rows].T), np.ascontiguousarray(end[rows].T)
        gaps = starts - predictors.start_offset[places, None]
        gaps[after_end] -= ends[before[after_end]]
        gaps[after_start] -= starts[before[after_start]]
        ends -= starts
        ends -= predictors.duration[places, None]
        residues.write(predictors.duration_class[places], ends)
        residues.write(predictors.start_class[places][1:], gaps[1:])


def _choose(predictors: _Predictors, places: slice, starts: Ints, ends: Ints) -> None:
    """Predictors by a sample [places, segments], which are in the order of `order`."""
    durations = ends - starts
    predictors.duration[places] = _medians(durations)
    cost = _bits(durations - predictors.duration[places, None])
    predictors.duration_class[places] = _class_of(cost)
    length = starts.shape[0]
    lag, after_end = np.zeros(length, np.int64), np.zeros(length, np.int64)
    offset, least = np.zeros(length, np.int64), np.full(length, np.inf)
    for number in range(1, min(_MAX_LAG + 1, length)):
        for is_end, times in ((1, ends), (0, starts)):
            gaps = starts[number:] - times[:-number]
            medians = _medians(gaps)
            cost = _bits(gaps - medians[:, None])
            better = np.flatnonzero(cost < least[number:])
            at = better + number
            least[at], lag[at], after_end[at] = cost[better], number, is_end
            offset[at] = medians[better]
    predictors.lag[places], predictors.after_end[places] = lag, after_end
    predictors.start_offset[places] = offset
    least[0] = 0.0
    predictors.start_class[places] = _class_of(least)


def _medians(values: Ints) -> Ints:
    """[places], of values [places, segments]; always one of them."""
    middle = values.shape[1] // 2
    return np.partition(values, middle, axis=1)[:, middle]


def _bits(residues: Ints) -> Any:
    """[places], the mean size of residues [places, segments]."""
    return np.asarray(np.log2(1.0 + np.abs(residues.astype(np.float64))).mean(axis=-1))


def _class_of(bits: Any) -> Ints:
    return np.asarray(np.minimum(bits, _NUM_CLASSES - 1)).astype(np.int64)


def _decode_regular(coding: _Coding, template: int, base: Ints, residues: _ResidueReader) -> None:
    layout, predictors, start, end = coding
    places, firsts = layout.places(template), layout.firsts_of(template)
    bases = base[layout.template_of == template]
    for at, part in layout.chunks(template, firsts):
        ends = residues.read(predictors.duration_class[places], part.size)
        ends += predictors.duration[places, None]
        starts = np.empty_like(ends)
        starts[1:] = residues.read(predictors.start_class[places][1:], part.size)
        starts += predictors.start_offset[places, None]
        starts[0] = bases[at]
        ends[0] += starts[0]
        sources = zip(
            predictors.lag[places].tolist(), predictors.after_end[places].tolist(), strict=True
        )
        for place, (lag, after_end) in enumerate(sources):
            if place:
                starts[place] += (ends if after_end else starts)[place - lag]
                ends[place] += starts[place]
        rows = part[:, None] + predictors.order[places]
        start[rows], end[rows] = starts.T, ends.T


def _encode_rare(coding: _Coding, kinds: Ints, residues: _ResidueWriter) -> None:
    """Each place follows on the one before it; medians are those of all places of a kind."""
    layout, predictors, start, end = coding
    rare = layout.rare
    if not rare.size:
        return
    _, examples = np.unique(layout.template_of[rare], return_index=True)
    within, first_places, first_rows = layout.expanded(rare[examples])
    by_start = np.lexsort((start[first_rows + within], first_places))
    places = first_places + within
    predictors.order[places] = within[by_start]
    predictors.lag[places] = predictors.after_end[places] = within > 0
    within, first_places, first_rows = layout.expanded(rare)
    places = first_places + within
    rows = first_rows + predictors.order[places]
    durations = end[rows] - start[rows]
    gaps = np.zeros_like(durations)
    gaps[1:] = start[rows[1:]] - end[rows[:-1]]
    kind_of = kinds[first_places + predictors.order[places]]
    for kind in np.unique(kind_of).tolist():
        chosen = np.flatnonzero(kind_of == kind)
        duration = _medians(durations[None, chosen])
        durations[chosen] -= duration
        of_kind = places[chosen]
        predictors.duration[of_kind] = duration
        predictors.duration_class[of_kind] = _class_of(_bits(durations[chosen]))
        predictors.start_class[of_kind] = _class_of(_bits(gaps[chosen]))
    residues.write(predictors.duration_class[places], durations)
    follows = within > 0
    residues.write(predictors.start_class[places[follows]], gaps[follows])


def _decode_rare(coding: _Coding, base: Ints, residues: _ResidueReader) -> None:
    layout, predictors, start, end = coding
    rare = layout.rare
    if not rare.size:
        return
    within, first_places, first_rows = layout.expanded(rare)
    places = first_places + within
    durations = residues.read(predictors.duration_class[places]) + predictors.duration[places]
    is_first = within == 0
    advance = np.empty_like(durations)
    advance[1:] = durations[:-1]
    advance[~is_first] += residues.read(predictors.start_class[places[~is_first]])
    advance[is_first] = base[rare]
    starts = np.cumsum(advance)
    before = np.flatnonzero(is_first)
    starts -= np.repeat(starts[before] - advance[before], layout.sizes[rare])
    rows = first_rows + predictors.order[places]
    start[rows], end[rows] = starts, starts + durations

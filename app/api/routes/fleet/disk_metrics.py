"""Metrics of the disk: what fills it, how much is free, and for how many days."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from app.store.disk.forecast import DiskForecast
from app.store.disk.table_sizes import TableSizes
from app.store.disk.usage import LEVELS, DiskLevel


@dataclass(frozen=True, slots=True)
class DiskSamples(Collector):
    """Samples of one moment; what could not be measured is None and has no samples."""

    sizes: TableSizes | None
    forecast: DiskForecast | None
    level: DiskLevel

    @override
    def collect(self) -> Iterator[Metric]:
        if self.sizes is not None:
            yield from _size_samples(self.sizes)
        if self.forecast is None:
            return
        level = "What is stored: 0 all, 1 all with a warning, 2 no operations, 3 nothing new."
        yield _gauge("disk_level", level, LEVELS.index(self.level))
        free = "Free bytes of the disk that the data is on, the fullest if several."
        yield _gauge("disk_free_bytes", free, self.forecast.free_bytes)
        yield _gauge(
            "disk_used_ratio", "Used share of that disk, 0 to 1.", self.forecast.used_share
        )
        if self.forecast.reusable_bytes is not None:
            inside = "Those of these free bytes that are inside the tables of PostgreSQL."
            yield _gauge("disk_reusable_bytes", inside, self.forecast.reusable_bytes)
        if self.forecast.days_left is not None:
            left = "Days until that disk is full, as it grew over the last week, at least an hour."
            yield _gauge("disk_days_left", left, self.forecast.days_left)


def _size_samples(sizes: TableSizes) -> Iterator[Metric]:
    whole = "Bytes of the database, free pages included."
    yield _gauge("database_bytes", whole, sizes.database_bytes)
    by_table = "Bytes of a table with its indexes; of large SQLite files an estimate."
    family = GaugeMetricFamily("paceline_table_bytes", by_table, labels=["table"])
    for table, number in sorted(sizes.tables.items()):
        family.add_metric([table], number)
    yield family


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"paceline_{name}", help_text, value=value)

"""Generates paceline.json, the Grafana dashboard: python ops/grafana/build.py writes it.

It is built from the models of the grafana-foundation-sdk, for Grafana 10.1 and newer. A test
compares the file with this script, and every figure in it with /metrics.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueGraphMode, VizOrientation
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DataSourceRef,
    DataTransformerConfig,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FILE = Path(__file__).parent / "paceline.json"
SOURCE = DataSourceRef("prometheus", "${source}")
JOBS = 'project=~"$project", job_id=~"$job"'
OF_JOB = "{{project}}/{{job_id}}"
Panel = stat.Panel | timeseries.Panel | bargauge.Panel | table.Panel


class Query(NamedTuple):
    """A query to Prometheus, and the legend of its lines."""

    expr: str
    legend: str = ""


def build() -> Dashboard:
    """The dashboard: fleet, jobs, alerts, and Paceline itself."""
    made = (
        dashboard.Dashboard("Paceline")
        .uid("paceline")
        .description("Training jobs slowed down by stragglers, and the cost.")
        .tags(["training", "stragglers"])
        .time("now-6h", "now")
        .refresh("30s")
        .with_variable(dashboard.DatasourceVariable("source").label("Source").type("prometheus"))
        .with_variable(_choice("project", "project", "paceline_job_state"))
        .with_variable(_choice("job", "job_id", 'paceline_job_state{project=~"$project"}'))
    )
    for title, panels in (
        ("Fleet", _fleet()),
        ("Jobs", _jobs()),
        ("Alerts", _alerts()),
        ("Paceline itself", _service()),
    ):
        made = made.with_row(dashboard.Row(title))
        for panel in panels:
            made = made.with_panel(panel)
    return made.build()


def text() -> str:
    """The content of the file."""
    return JSONEncoder(sort_keys=True, indent=2).encode(build()) + "\n"


def _fleet() -> Sequence[Panel]:
    lost = "max(paceline_gpu_hours_lost_per_hour)"
    return [
        _figure("Straggling jobs", Query('max(paceline_jobs{state="straggling"})')),
        _figure(
            "Jobs stalled or silent",
            Query('sum(max by (state) (paceline_jobs{state=~"stalled|silent"}))'),
        ),
        _figure("GPUs of running jobs", Query("max(paceline_gpus)")),
        _figure("GPU-hours lost an hour", Query(lost), decimals=1),
        _figure(
            "Share of GPUs lost", Query(f"{lost} / (max(paceline_gpus) > 0)"), "percentunit", 1
        ),
        _figure("Firing alerts", Query("sum(max by (severity) (paceline_alerts_firing))")),
    ]


def _jobs() -> Sequence[Panel]:
    return [
        _course("Slowdown", Query(_worst("slowdown_ratio"), OF_JOB), unit="none", width=12).min(1),
        _course(
            "GPU-hours lost an hour", Query(_worst("gpu_hours_lost_per_hour"), OF_JOB), width=12
        ),
        _course("Step time", Query(_worst("step_seconds"), OF_JOB), unit="s", width=12),
        _causes(),
        _table(),
    ]


def _alerts() -> Sequence[Panel]:
    outcomes = "max by (outcome) (increase(paceline_webhook_deliveries_total[5m]))"
    return [
        _course(
            "Firing alerts", Query("max by (severity) (paceline_alerts_firing)", "{{severity}}")
        ),
        _course("Notifications in 5 minutes", Query(outcomes, "{{outcome}}")),
        _course(
            "Queued notifications",
            Query("max(paceline_outbox_due)", "number"),
            Query("max(paceline_outbox_oldest_seconds)", "age of the oldest, s"),
        ),
    ]


def _service() -> Sequence[Panel]:
    p99 = "histogram_quantile(0.99, sum by (le) (rate(paceline_ack_seconds_bucket[5m])))"
    refused = 'sum by (status) (rate(paceline_requests_total{status=~"4..|5.."}[5m]))'
    return [
        _course(
            "Operations a second", Query("sum(rate(paceline_ops_received_total[5m]))", "received")
        ),
        _course("Batch to its 202, p99", Query(p99, "p99"), unit="s"),
        _course(
            "Oldest batch in the queue",
            Query("max by (shard) (paceline_queue_oldest_seconds)", "{{shard}}"),
            unit="s",
        ),
        _course(
            "Consumers alive",
            Query("max(paceline_consumers_alive)", "consumers"),
            Query("max(paceline_shards_unheld)", "shards without a consumer"),
        ),
        _course("Refusals a second", Query(refused, "{{status}}")),
        _course("Dead letters", Query("max(paceline_dead_letters)", "dead letters")),
    ]


def _choice(name: str, label: str, of: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .datasource(SOURCE)
        .query(f"label_values({of}, {label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .include_all(True)
        .all_value(".*")
        .multi(True)
    )


def _worst(figure: str) -> str:
    return f"topk(20, max by (project, job_id) (paceline_job_{figure}{{{JOBS}}}))"


def _asked(query: Query, *, now: bool = False) -> prometheus.Dataquery:
    asked = prometheus.Dataquery().datasource(SOURCE).expr(query.expr).legend_format(query.legend)
    return asked.instant() if now else asked.range()


def _figure(title: str, query: Query, unit: str = "none", decimals: int = 0) -> stat.Panel:
    return (
        stat.Panel()
        .title(title)
        .datasource(SOURCE)
        .with_target(_asked(query))
        .unit(unit)
        .decimals(decimals)
        .graph_mode(BigValueGraphMode.AREA)
        .height(5)
        .span(4)
    )


def _course(title: str, *queries: Query, unit: str = "short", width: int = 8) -> timeseries.Panel:
    panel = timeseries.Panel().title(title).datasource(SOURCE).unit(unit).height(8).span(width)
    for at, query in enumerate(queries):
        panel = panel.with_target(_asked(query).ref_id(chr(ord("A") + at)))
    return panel.fill_opacity(10)


def _causes() -> bargauge.Panel:
    of = f"paceline_job_cause_gpu_time_ratio{{{JOBS}}}"
    query = Query(f"topk(10, max by (project, job_id, cause) ({of}))", "{{job_id}}: {{cause}}")
    return (
        bargauge.Panel()
        .title("Most costly causes, share of the job's GPU time")
        .datasource(SOURCE)
        .with_target(_asked(query, now=True))
        .orientation(VizOrientation.HORIZONTAL)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .unit("percentunit")
        .height(8)
        .span(12)
    )


def _table() -> table.Panel:
    of = f"paceline_worst_worker_slowdown_ratio{{{JOBS}}}"
    asked = _asked(Query(f"max by (project, job_id, worker, host) ({of})"), now=True)
    columns = {"project": 0, "job_id": 1, "worker": 2, "host": 3, "Value": 4}
    arranged = {
        "excludeByName": {"Time": True},
        "indexByName": columns,
        "renameByName": {"Value": "slowdown"},
    }
    return (
        table.Panel()
        .title("Slowest workers")
        .datasource(SOURCE)
        .with_target(asked.format(PromQueryFormat.TABLE))
        .with_transformation(DataTransformerConfig(id_val="organize", options=arranged))
        .sort_by([common.TableSortByFieldState().display_name("slowdown").desc(True)])
        .decimals(2)
        .height(8)
        .span(24)
    )


if __name__ == "__main__":
    FILE.write_text(text())

"""How does what Paceline knows get into other tools?"""

from typing import Any

import typer

from app.cli.exporting import metrics, perfetto, results, trace

app: Any = typer.Typer(
    no_args_is_help=True,
    help="Write traces and results for other tools, from a file or from a server.",
)
app.command("trace")(trace.trace)
app.command("perfetto")(perfetto.perfetto)
app.command("results")(results.results)
app.command("otlp-metrics")(metrics.otlp_metrics)

"""How do traces and results get into other tools?

Read `source.py` first: it says what is exported. Each command has a file of its name.
Imported by: cli.
"""

from typing import Any

import typer

from app.cli.exporting import otlp_metrics, results, trace

app: Any = typer.Typer(
    no_args_is_help=True,
    help="Write traces and results for other tools, from a file or a server.",
)
app.command("trace")(trace.trace)
app.command("perfetto")(trace.perfetto)
app.command("results")(results.results)
app.command("otlp-metrics")(otlp_metrics.otlp_metrics)

"""Benchmarks, as commands: how fast is Paceline on this machine, how often right? Prints JSON."""

import typer

from app.cli.bench.alerts.command import alerts
from app.cli.bench.analyze import analyze
from app.cli.bench.api.command import api
from app.cli.bench.client import client
from app.cli.bench.diagnosis.command import diagnosis
from app.cli.bench.faults.command import faults
from app.cli.bench.first import first
from app.cli.bench.fuzz import fuzz, fuzz_importing, fuzz_reading
from app.cli.bench.fuzz_spans import fuzz_spans
from app.cli.bench.growth import growth
from app.cli.bench.importing import importing
from app.cli.bench.ingest import ingest
from app.cli.bench.page.command import page
from app.cli.bench.pipeline import pipeline
from app.cli.bench.schema import schema
from app.cli.bench.torch import torch

app = typer.Typer(no_args_is_help=True, help="Measure Paceline on this machine; prints JSON.")
app.command()(analyze)
app.command()(growth)
app.command()(first)
app.command("import")(importing)
app.command()(ingest)
app.command()(pipeline)
app.command()(page)
app.command()(api)
app.command()(schema)
app.command()(fuzz)
app.command()(fuzz_spans)
app.command(hidden=True)(fuzz_reading)
app.command(hidden=True)(fuzz_importing)
app.command()(faults)
app.command()(diagnosis)
app.command()(alerts)
app.command()(client)
app.command()(torch)

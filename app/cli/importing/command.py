"""`paceline import`: traces of other tools, to a file or a server."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import token_option
from app.cli.output import printable
from app.cli.terminal import stderr_console
from app.cli.trace_input import printable_errors
from app.formatting import plural

if TYPE_CHECKING:
    from app.cli.importing.options import ImportTarget
    from app.trace.job import Job
    from app.trace.readers.importing import ImportSummary, OperationImport


def import_(
    format_: Annotated[
        str,
        typer.Argument(
            help="Format of the files; `paceline import formats` lists them.", metavar="FORMAT"
        ),
    ],
    named: Annotated[
        list[Path] | None,
        typer.Argument(help="All files of one run, plain or gzip-compressed.", metavar="FILES..."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the trace here, its meta file beside it.", metavar="TRACE.parquet"
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Push to this server instead.")] = None,
    token: Annotated[str | None, token_option("Its token")] = None,
    job: Annotated[
        str | None, typer.Option(help="Id of the new job. Default: the name in the files.")
    ] = None,
    run_key: Annotated[
        str | None, typer.Option(help="Push as a new run of an existing job that has ended.")
    ] = None,
    mapped: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="Map names that match REGEX to an operation type; its groups mb, chunk and step "
            "are numbers. May be repeated; the first match counts.",
            metavar="REGEX=OPTYPE",
        ),
    ] = None,
    meta: Annotated[
        Path | None, typer.Option(help="Meta file with sizes and custom op types.")
    ] = None,
    dp: Annotated[int | None, typer.Option(min=1, help="Data-parallel size.")] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline stages.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor-parallel size.")] = None,
    vpp: Annotated[int | None, typer.Option(min=1, help="Model chunks per stage.")] = None,
    dsp: Annotated[
        int | None, typer.Option(min=1, help="Ranks that share a sequence (context parallel).")
    ] = None,
    ep: Annotated[int | None, typer.Option(min=1, help="Expert-parallel size.")] = None,
) -> None:
    """Convert a trace of another tool to Paceline's format, or push it to a server.

    Reports what the files lack, and which figures suffer. Example:

    paceline import kineto rank*.json.gz --dp 4 --pp 2 --map '^fwd (?P<mb>[0-9]+)$=forward-compute'
    --out trace-mine.parquet
    """
    from app.cli.importing.options import (
        ImportTarget,
        distinct_files,
        import_options,
        refuse_conflicts,
    )
    from app.trace.readers import registry

    if format_ == "formats":
        width = max(map(len, registry.FORMATS))
        for row in registry.FORMATS.values():
            typer.echo(f"{row.name:{width}}  {row.description}")
        return
    chosen = registry.format_named(format_)
    paths = distinct_files(named)
    sizes = {"dp_size": dp, "pp_size": pp, "tp_size": tp, "vpp_size": vpp, "dsp_size": dsp}
    options = import_options(mapped or (), {**sizes, "ep_size": ep}, meta, job)
    target = ImportTarget(out, url, token, job, run_key)
    refuse_conflicts(target, paths, meta)
    with printable_errors():
        _import_ops(chosen.opened(paths, options), target, paths[0])


def _import_ops(opened: "OperationImport", target: "ImportTarget", first: Path) -> None:
    from app.cli.importing.destinations import push_run, save_trace
    from app.engine.memory import release_large_blocks
    from app.trace.readers.published.meta import trace_name

    release_large_blocks()  # keeps memory independent of the file size
    with closing(opened):
        with stderr_console().status("reading"):
            described = opened.describe()
        job = described.job(target.job or trace_name(target.out or first))
        typer.echo(describe_import(described, job), err=True)
        if target.out is not None:
            save_trace(opened, described, job, target.out)
            typer.echo(f"{printable(str(target.out))}")
        elif target.url is not None:
            typer.echo(push_run(opened, described, job, target))
        else:
            # Reads all rows: faults that would stop a write are reported here, too.
            with stderr_console().status("checking"):
                for _ in opened.chunks():
                    pass


def describe_import(described: "ImportSummary", job: "Job") -> str:
    """The job and sizes of the files, and the missing data."""
    sizes = job.parallelism
    named = [f"dp {sizes.dp_size}", f"pp {sizes.pp_size}", f"tp {sizes.tp_size}"]
    others = (("vpp", sizes.vpp_size), ("dsp", sizes.dsp_size), ("ep", sizes.ep_size))
    named += [f"{name} {size}" for name, size in others if size > 1]
    run = f", run {described.run_key}" if described.run_key is not None else ""
    labels = "".join(f", {key} {value}" for key, value in described.labels.items())
    steps, workers = plural(len(described.steps), "step"), plural(len(described.places), "worker")
    counts = f"{plural(described.num_ops, 'operation')}, {steps}, {workers}"
    first = f"{job.name}{run}{labels}: {counts} ({', '.join(named)})"
    lacking = [f"- {missing.what}: {missing.cost}" for missing in described.missing]
    return "\n".join(map(printable, [first, *["The files lack:"] * bool(lacking), *lacking]))

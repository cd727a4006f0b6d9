"""`python -m benchmarks NAME [OPTIONS]`: runs one benchmark; without a name, lists them all."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

import typer

from app.cli.output import printable
from app.errors import PacelineError

EXIT_REFUSED = 2


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Where a benchmark is, and what it measures.

    `entry` is MODULE or MODULE:FUNCTION, below this package: a typer command, or without a function
    a module whose `main` takes the arguments and returns the exit status.
    """

    entry: str
    what: str

    def run(self, name: str, arguments: Sequence[str]) -> int:
        """The exit status; imports what it needs only now.

        Raises:
            SystemExit: a typer command ended, with its status.
        """
        module_name, _, function = self.entry.partition(":")
        module = import_module(f"{__package__}.{module_name}")
        if not function:
            status: int = module.main(list(arguments))
            return status
        return _run_command(name, getattr(module, function), arguments)


# By the question that they answer, then by name on the command line.
GROUPS: Mapping[str, Mapping[str, Benchmark]] = {
    "How fast": {
        "compare": Benchmark("compare:compare", "is this tree slower than an earlier commit?"),
        "analyze": Benchmark("analysis:analyze", "load, analysis, one simulation, a question"),
        "figures": Benchmark("figures.command", "the tables of docs/benchmarks.md, measured again"),
        "growth": Benchmark("analysis:growth", "time of an analysis, by size of the job"),
        "storage": Benchmark(
            "service.storage:storage", "GB of 40 jobs after 30 days; pages of old jobs"
        ),
        "first": Benchmark("analysis:first", "`paceline analyze` as a process of its own"),
        "operations": Benchmark(
            "operations:operations", "bytes of stored operations, how fast they are encoded"
        ),
        "arrivals": Benchmark("arrivals", "how long arrivals take on jobs of thousands of ranks"),
        "import": Benchmark("importing:importing", "memory and time of a large foreign file"),
        "ingest": Benchmark("service.ingest:ingest", "batches to durable in the queue"),
        "pipeline": Benchmark("service.pipeline:pipeline", "batches to stored results on the API"),
        "api": Benchmark("service.api:api", "what pages ask, with 1,000 jobs stored"),
        "page": Benchmark("service.page:page", "a job's page in Chromium: clicks, live, heap"),
        "follow": Benchmark("service.follow:follow", "whether a live job's figures hold still"),
        "page-under-load": Benchmark(
            "service.page_load:page_under_load", "pages' requests while a job pushes flat out"
        ),
        "hostile": Benchmark(
            "service.hostile:hostile", "pushes and probes while a read token does its worst"
        ),
        "soak": Benchmark("service.soak:soak", "memory of API and consumer over hours of use"),
        "client": Benchmark("recording.client:client", "what recording costs a training"),
        "torch": Benchmark("recording.training:torch", "the same in a real one, on the CPU"),
    },
    "How often right": {
        "diagnosis": Benchmark(
            "diagnosis.command:diagnosis", "cause and culprit on simulated jobs"
        ),
        "strangers": Benchmark("strangers.command", "the same on jobs of an independent generator"),
        "thresholds": Benchmark(
            "thresholds:thresholds", "which answers hang on which threshold of the diagnosis?"
        ),
        "behind": Benchmark(
            "service.behind:behind", "does it blame jobs while it is overloaded and broken?"
        ),
        "consumers": Benchmark(
            "service.consumers:consumers", "do several share the shards, and outlive crashes?"
        ),
        "alerts": Benchmark("alerts.command:alerts", "do alerts fire where they should?"),
        "advice": Benchmark("advice", "predicted against achieved gain of each fix"),
        "advised": Benchmark("advised_trainings", "the same in real trainings, fixes pasted"),
        "planted": Benchmark("planted:planted", "faults put into the code: do tests find them?"),
        "profiles": Benchmark("profiles", "plain torch.profiler files: step time, coverage, waits"),
        "trainings": Benchmark("trainings", "real trainings on the CPU with a fault each"),
        "gpu": Benchmark("gpu", "recordings from a real GPU: is the slow rank named?"),
    },
    "How it reads": {
        "journey": Benchmark("journey:journey", "files of app/ that one batch, turn, alert enters"),
    },
    "What breaks it": {
        "faults": Benchmark("faults:faults", "kill everything at random: is every 2xx kept?"),
        "disk-full": Benchmark("disk_full:disk_full", "fill the disk: is every 2xx kept?"),
        "watch": Benchmark("watch:watch", "kill every consumer, break parts: is anybody told?"),
        "unharmed": Benchmark(
            "unharmed.command:unharmed", "trainings under faults, with Paceline and without"
        ),
        "fuzz": Benchmark("fuzz:fuzz", "wrong bytes of every kind, and wrong files"),
        "fuzz-spans": Benchmark("fuzz:fuzz_spans", "wrong OTLP bodies"),
        "superlinear": Benchmark(
            "superlinear:superlinear", "does CPU grow with the size of every input, and no faster?"
        ),
        "schema": Benchmark("schema.command:schema", "does the API keep to /openapi.json?"),
    },
}
BENCHMARKS = {name: each for group in GROUPS.values() for name, each in group.items()}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the first argument names; 2 where there is none of that name."""
    name = arguments[0] if arguments else ""
    if name in BENCHMARKS:
        return BENCHMARKS[name].run(name, arguments[1:])
    print("usage: python -m benchmarks NAME [OPTIONS]   (--help after a name lists its options)")
    width = max(map(len, BENCHMARKS))
    for question, group in GROUPS.items():
        print(f"\n{question}")
        for each, benchmark in group.items():
            print(f"  {each:{width}}  {benchmark.what}")
    return 0 if name in ("-h", "--help") else EXIT_REFUSED


def _run_command(name: str, function: Callable[..., None], arguments: Sequence[str]) -> int:
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(name)(function)
    command = typer.main.get_command(app)
    try:
        command.main(list(arguments), prog_name=f"python -m benchmarks {name}")
    except PacelineError as error:
        print(f"benchmarks: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

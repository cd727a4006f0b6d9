"""Rows of accuracy: one for each generator of jobs and each set of recordings."""

from collections import Counter
from collections.abc import Callable, Mapping

from benchmarks.figures.measurement import Measured, Options, benchmark, has_package, share_of
from benchmarks.figures.tables import Table
from benchmarks.gpu import TRUTHS
from benchmarks.profiles import SLOW_RANK

# Small, so that all rows take minutes; the seeds are none that detectors were worked on.
NUM_JOBS = "60"
DIAGNOSIS_SEED = "1032"
STRANGERS_SEED = "2032"


def diagnosis(_options: Options) -> Measured:
    """Jobs of the product's own simulation."""
    (found,) = benchmark("diagnosis", "--jobs", NUM_JOBS, "--seed", DIAGNOSIS_SEED)
    num_silent = sum(not miss["said"] and "cause" in miss["wrong"] for miss in found["misses"])
    faulty = found["jobs"] - found["healthy_jobs"]
    return Measured(
        (
            f"{found['jobs']} jobs of Paceline's simulation, seed {DIAGNOSIS_SEED}",
            share_of(found["top1_accuracy"], found["single_jobs"]),
            share_of(found["culprit_accuracy"], found["placed_jobs"]),
            f"{found['false_causes']} of {found['healthy_jobs']} healthy jobs, beside the fault in "
            f"{found['false_causes_beside']} of {faulty}",
            f"{num_silent} of {found['single_jobs']}",
        ),
        {key: value for key, value in found.items() if not isinstance(value, list | dict)},
    )


def strangers(_options: Options) -> Measured:
    """Jobs of a generator that knows no detector."""
    return _strangers(("--jobs", NUM_JOBS, "--seed", STRANGERS_SEED), f"seed {STRANGERS_SEED}")


def strangers_final(_options: Options) -> Measured:
    """The same, all jobs of the seed that accuracy is claimed on."""
    return _strangers(("--final",), "the final seed, fixed before the detectors")


def _strangers(arguments: tuple[str, ...], seed: str) -> Measured:
    (found,) = benchmark("strangers", *arguments)
    counted, healthy = found["counted_single"], found["jobs"]["healthy"]
    exact = {area: found[f"{area}_culprits_exact"] for area in ("compute", "network", "host")}
    return Measured(
        (
            f"{sum(found['jobs'].values()):,} jobs of an independent generator, {seed}",
            share_of(found["right_first"], counted),
            ", ".join(
                f"{area} {100 * share:.3g} %" for area, share in exact.items() if share is not None
            ),
            f"{share_of(found['wrong_names'], counted)}; {found['false_causes_healthy']} of "
            f"{healthy} healthy jobs",
            f"{share_of(found['silently_missed'], counted)}, withheld "
            f"{share_of(found['abstained'], counted)}",
        ),
        {key: value for key, value in found.items() if not isinstance(value, list | dict)},
    )


def gpu(options: Options) -> Measured:
    """Recordings of the client on a real GPU, with a slow rank or none."""
    (found,) = benchmark("gpu", "--shared", str(options.shared))
    recordings = found["recordings"]
    slow = [recordings[truth.name] for truth in TRUTHS if truth.rank is not None]
    healthy = [recordings[truth.name] for truth in TRUTHS if truth.rank is None]
    num_right = sum(not recording["missed"] for recording in slow)
    num_silent = sum(not recording["said"] for recording in slow)
    num_blamed = sum(bool(recording["said"]) for recording in healthy)
    return Measured(
        (
            f"{len(TRUTHS)} recordings of four ranks with NCCL on one H100, {len(slow)} with a "
            "slow rank",
            f"{num_right} of {len(slow)}, its cost and fidelity too",
            f"{num_right} of {len(slow)}",
            f"{num_blamed} of {len(healthy)} healthy recordings, "
            f"{len(slow) - num_right - num_silent} of {len(slow)} slow ones",
            f"{num_silent} of {len(slow)}",
        ),
        found,
    )


def profiles(options: Options) -> Measured:
    """Plain profiles: of the same GPU with a slow rank, and files that others published."""
    (found,) = benchmark(
        "profiles", "--shared", str(options.shared), *_with_hta(options.peer_python)
    )
    slow, real = found["slow"].values(), found["real"].values()
    right = [profile["causes"] == ["slow-worker"] for profile in slow]
    culprits = [profile["first"] == [SLOW_RANK] for profile in slow]
    silent = sum(not profile["causes"] for profile in slow)
    files = found["breakdown"]["files"].values()
    points = [profile["points"] for profile in files if profile["points"] is not None]
    return Measured(
        (
            f"{len(right)} jobs' torch.profiler files with a slow rank, {len(real)} published jobs "
            "without a known fault",
            f"{sum(right)} of {len(right)}",
            f"{sum(culprits)} of {len(culprits)}",
            f"{sum(not profile['is_right'] for profile in real)} of {len(real)} published jobs, "
            f"{len(right) - sum(right) - silent} of {len(right)} slow ones; breakdowns "
            f"{max(points):.2g} points at most from {found['breakdown']['against']}, "
            f"{len(points)} files",
            f"{silent} of {len(right)}",
        ),
        found,
    )


def _with_hta(python: str) -> tuple[str, ...]:
    return ("--hta-python", python) if has_package(python, "hta") else ()


def trainings(_options: Options) -> Measured:
    """Real trainings on the CPU, one of each case."""
    (found,) = benchmark("trainings", "--runs", "1")
    counts: Counter[str] = Counter()
    for case in found["cases"].values():
        counts.update({name: n for name, n in case.items() if isinstance(n, int)})
    faulty = found["faulty_runs"]
    num_healthy = counts["runs"] - faulty
    num_right = counts["right"] + counts["wrong_culprit"]
    skipped = f", {len(found['skipped'])} cases skipped" if found["skipped"] else ""
    return Measured(
        (
            f"{counts['runs']} trainings with PyTorch on this machine's CPU{skipped}",
            f"{num_right} of {faulty}",
            f"{counts['right']} of {faulty}",
            f"{counts['false_cause']} of {num_healthy} healthy trainings, "
            f"{counts['wrong_cause']} of {faulty} with a fault",
            f"{counts['missed']} of {faulty}",
        ),
        found,
    )


ROWS: Mapping[str, Callable[[Options], Measured]] = {
    "diagnosis": diagnosis,
    "strangers": strangers,
    "strangers-final": strangers_final,
    "gpu": gpu,
    "profiles": profiles,
    "trainings": trainings,
}
# Up to a quarter of an hour: measured only where they are named.
LONG = frozenset(("strangers-final", "trainings"))
TABLE = Table(
    "Accuracy",
    (
        *("jobs", "right cause first", "right culprit", "wrong names", "nothing said"),
        *("machine", "commit", "date"),
    ),
    tuple(ROWS),
)

"""`python -m benchmarks NAME [OPTIONS]`: runs one benchmark."""

import sys
from importlib import import_module

# Name on the command line: what it measures.
BENCHMARKS = {
    "gpu": "recordings from a real GPU: is the slow rank named, and at what cost?",
    "profiles": "plain torch.profiler files: step time, coverage, who was waited for",
    "trainings": "real trainings on the CPU with a fault each: cause and rank",
    "groups": "made tp, cp and ep groups: is the slow GPU named, and is a healthy one never?",
    "peers": "a real training of tensor-parallel peers: is the slow one named?",
    "arrivals": "how long arrivals take on jobs of thousands of ranks",
}


def main(arguments: list[str]) -> int:
    """Run the benchmark that the first argument names; 2 where there is none of that name."""
    name = arguments[0] if arguments else ""
    if name not in BENCHMARKS:
        width = max(map(len, BENCHMARKS))
        print(
            "usage: python -m benchmarks NAME [OPTIONS]   (--help after a name lists its options)"
        )
        for each, what in BENCHMARKS.items():
            print(f"  {each:{width}}  {what}")
        return 0 if name in ("-h", "--help") else 2
    status: int = import_module(f"benchmarks.{name}").main(arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

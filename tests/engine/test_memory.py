import subprocess
import sys

import pytest

# Both are asked for what they did themselves: pages that a second round had to get anew.
ROUNDS = """
import resource, sys
import numpy as np
from app.engine.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()


def a_round():
    pieces = [np.ones(500_000) for _ in range(5)]
    return len(pieces)


a_round()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
a_round()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_kept_memory_causes_no_new_page_faults():
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", ROUNDS, how]))
        for how in ("keep", "give back")
    }
    assert faults["keep"] * 10 < faults["give back"]

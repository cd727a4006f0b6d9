"""A real training of tensor-parallel peers, one of which may be slow: is it named?

`recorded.py` trains on this machine and returns the windows that Paceline's assembler closes;
`train.py` is the training of one rank. Needs PyTorch.
"""

from benchmarks.peers.recorded import main

__all__ = ["main"]

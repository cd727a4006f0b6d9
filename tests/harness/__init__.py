"""What tests and benchmarks share: real servers, faults, proxies, crash points, oracles, fuzzers.

Start with stack.py: a whole Paceline on loopback that can be broken at every joint. trial.py pushes
jobs to it while faults happen and judges what became of them; alerts/ does the same for
notifications, and fuzz/ makes damaged input. Nothing here needs pytest, and nothing of it is in the
wheel; app/ never imports it.
"""

"""What can be wrong with a simulated job?

Read `fault.py` first, which is the interface, then `registry.py`, which lists every fault. A new
fault joins the module of its family.
Imported by: cli, synth, watch.
"""

"""Which frameworks can be recorded without calls to the recorder? One file each.

Read `megatron.py` first, as an example. Training scripts import one of these modules.
Imported by: nothing.
"""

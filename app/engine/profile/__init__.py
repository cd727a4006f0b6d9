"""What a GPU did all step long, by a plain profile: computing, communicating, copying, idle.

`breakdown.py` divides each step's time, `exposed.py` takes out of a wait what the rank computed
meanwhile, `bandwidth.py` has the collectives' sizes and speeds. docs/feeds/kineto.md defines the
figures.
"""

"""Which operation waits for which? One file per part of docs/replay.md.

Each rule takes the template and gives edges (before, after) between its operations. Start with
end_of_step.py and pipeline.py. Only app/engine/graph.py imports the rules.
"""

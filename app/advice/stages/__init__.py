"""How many layers should each pipeline stage have?

Read `stage_costs.py` first (what a layer, the embedding and the loss cost); split_search.py
searches the numbers with the simulator, stage_layout.py writes them down for trainers.
Imported by: advice.
"""

"""How long would a step take with other numbers of micro-batches, or another schedule?

Read `rebuilt_pipeline.py` first (`RebuiltPipeline`); recorded_pipeline.py recognises a job's
pipeline.
Imported by: advice.
"""

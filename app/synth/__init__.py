"""What would the workers of a job with a known fault have recorded?

Read `job` first, then `truth`. The simulation shares no code with the engine that analyses it.
`app.cli` and tests import this package; it may import `app.diagnosis` for the names of causes and
culprits.
"""

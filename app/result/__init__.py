"""What does an analysis say? The result of a window as typed records, and their schema.

Read `window_result.py` first. Nothing here computes, stores or draws.
Imported by: alerts, api, diagnosis.
"""

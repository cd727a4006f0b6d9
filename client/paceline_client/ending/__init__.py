"""How does a training process end: finished, failed, terminated or killed?

Read `process_end.py` first, which runs in training; `exit_watcher.py` runs beside it.
Imported by: paceline_client.
"""

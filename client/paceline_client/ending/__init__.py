"""How a training process ends, told to the server: finished, failed, terminated or killed.

Imported by: recorder and startup. `process_end.py` runs in training, `exit_watcher.py` beside it.
"""

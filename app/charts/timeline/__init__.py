"""What happened within one step? Every operation as a bar, the critical path, and waiting.

Start with `timeline.py`. Only the API's timeline routes import it.
"""

"""What changed between two windows? The headline, the causes, and both sides in one picture.

Start with `summary.py`. Only the API's compare route imports it.
"""

"""What did every worker do and when, and what would it have done without stragglers?

Start with step_view.py (one step for the page) or writer.py (Chrome trace events). charts, api and
cli import this package.
"""

"""What would a step take if some operations took another time? A user's own what-if question.

Start with answer.py (`Questions.answer`); edits.py has the question, selection.py finds its
operations and apply.py changes their durations. api and cli import this package.
"""

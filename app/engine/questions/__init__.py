"""How long would a step take if some operations took another time? A what-if question.

Read `answer.py` first (`Questions.answer`); edits.py has the question, selection.py finds its
operations and apply.py changes their durations.
Imported by: advice, api, charts, cli, diagnosis.
"""

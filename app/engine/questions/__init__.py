"""How long would a step take if some operations took another time? A what-if question.

Read `answer.py` first (`Questions.answer`); edits.py has the question and selection.py
its operations.
Imported by: advice, api, charts, cli, diagnosis.
"""

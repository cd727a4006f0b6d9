"""Which notifications are due now, and to which receivers?

Read `plan.py` first. Nothing is saved or sent here: the consumer's dispatcher does that.
Imported by: consumer.
"""

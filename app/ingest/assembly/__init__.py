"""How do batches in any order become steps, and steps windows?

Read `assembler.py` first. Nothing is saved here: the consumer does that.
Imported by: api, consumer.
"""

"""How do batches in any order become steps, and steps windows?

Read `assembler.py` first. Nothing is saved or waited for here: the consumer does both.
"""

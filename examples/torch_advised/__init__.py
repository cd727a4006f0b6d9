"""A small training with a fault, and with the advised fix applied as it is pasted."""

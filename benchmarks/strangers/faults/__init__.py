"""What slows a job down, and what is the right answer. Start with `fault.py`."""

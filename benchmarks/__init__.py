"""How often is Paceline right, and how fast is it? Start with `__main__.py`, which lists them.

Each module is one benchmark with a `main(arguments)` that prints JSON and returns the process's
exit status: 1 while one of its bars is missed. Not part of the wheel.
"""

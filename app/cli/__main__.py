"""`python -m app.cli` is the command `paceline`."""

from app.cli import main

main()

"""`python -m paceline_client`: the report of `paceline_client.check()`."""

import sys

from .self_check import main

if __name__ == "__main__":
    sys.exit(main())

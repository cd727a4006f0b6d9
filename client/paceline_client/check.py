"""`python -m paceline_client.check`: the report of `paceline_client.check()`."""

import sys

from .checking import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m cotalk`: the command line from a source tree."""

import sys

from cotalk.cli import main

if __name__ == "__main__":
    sys.exit(main())

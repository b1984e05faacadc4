"""The command `cotalk`, and `python -m cotalk`: cli.py, and Ctrl-C or a closed pipe before and after it.

Its imports take a second, in which Ctrl-C would be a traceback.
"""

import os
import sys


def main() -> int:
    """Runs the command line; 130 for Ctrl-C also while modules are read, 141 where nobody reads the output."""
    try:
        from cotalk.cli import main as run

        code = run()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("cotalk: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head`
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # what is left to flush has nowhere to go
        return 141


if __name__ == "__main__":
    sys.exit(main())

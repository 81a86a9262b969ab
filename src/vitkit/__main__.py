"""`python -m vitkit` and the `vitkit` command."""

import os
import sys

from vitkit.cli import streams
from vitkit.cli.main import run

# Threads that wait for each other give way soon. With the default, another busy process on the same cores
# makes small models many times slower (docs/results.md). Read when torch is imported, hence here.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def main() -> None:
    streams.prepare()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

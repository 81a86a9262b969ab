"""`python -m vitkit` and the `vitkit` command."""

import gc
import os
import sys

from vitkit.cli import streams
from vitkit.cli.main import run

# Threads that wait for each other give way soon. With the default, another busy process on the same cores
# makes small models many times slower (docs/results/speed.md). Read when torch is imported, hence here.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def main() -> None:
    streams.prepare()
    code = run(sys.argv[1:])
    # As it ends, Python looks through everything for garbage several times. What torch alone has made takes
    # 0.4 s of it, and what is frozen is passed over; files, threads and exit handlers end as ever.
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    main()

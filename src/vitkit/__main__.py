"""`python -m vitkit` and the `vitkit` command."""

import sys

from vitkit.apps.cli import run


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

"""`python -m tests.peers`: one table of how far vitkit is from its peers on the same weights.

Exits with 1 if any case fails.
"""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator

import torch

from tests.peers.case import Case
from vitkit.jobs.convert import import_library

LIBRARIES = ("timm", "huggingface")
HEADER = "| model | direction | size | largest difference | allowed | top-1 agreement |"


def cases() -> Iterator[Case]:
    """The cases of every library there is a module for."""
    for library in LIBRARIES:
        name = f"tests.peers.{library}_cases"
        if importlib.util.find_spec(name) is None:
            print(f"no cases of {library}", file=sys.stderr)
            continue
        yield from importlib.import_module(name).cases()


def main() -> int:
    torch.set_num_threads(1)
    logging.getLogger("vitkit").setLevel(logging.ERROR)  # that positions are resized is known here
    import_library("timm")
    done = []
    for case in cases():
        done.append(case)
        verdict = "ok" if case.passed else "FAILED"
        print(
            f"{verdict}: {case.model}, {case.direction}, {case.size}: {case.difference:.1e}", file=sys.stderr
        )
    print(HEADER)
    print("|---|---|---|---|---|---|")
    for case in done:
        difference = f"{case.difference:.1e}" + ("" if case.passed else " **FAILED**")
        print(
            f"| {case.model} | {case.direction} | {case.size} | {difference} | {case.allowed:.0e} "
            f"| {case.agreement:.0%} |"
        )
    return 0 if done and all(case.passed for case in done) else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.peers`: one table of how far vitkit is from its peers on the same weights.

Exits with 1 if any case fails.
"""

import logging
import sys
from itertools import chain

import torch

from tests.peers import huggingface_cases, timm_cases
from vitkit.jobs.convert import import_library

HEADER = "| model | direction | size | largest difference | allowed | top-1 agreement |"


def main() -> int:
    torch.set_num_threads(1)
    logging.getLogger("vitkit").setLevel(logging.ERROR)  # that positions are resized is known here
    import_library("timm")
    done = []
    for case in chain(timm_cases.cases(), huggingface_cases.cases()):
        done.append(case)
        verdict = "ok" if case.passed else "FAILED"
        said = f"{verdict}: {case.model}, {case.direction}, {case.size}: {case.difference:.1e}"
        print(said, file=sys.stderr)
    print(HEADER, "|---|---|---|---|---|---|", sep="\n")
    for case in done:
        difference = f"{case.difference:.1e}" + ("" if case.passed else " **FAILED**")
        numbers = f"{difference} | {case.allowed:.0e} | {case.agreement:.0%}"
        print(f"| {case.model} | {case.direction} | {case.size} | {numbers} |")
    return 0 if done and all(case.passed for case in done) else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.peers.trainer`: the example of the Trainer of Hugging Face learns; exits with 1 if not."""

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path

from vitkit.jobs.convert import import_library

EXAMPLE = Path(__file__).parents[2] / "examples" / "huggingface_trainer.py"


def main() -> int:
    import_library("transformers")  # whose torchvision may be broken, which the example need not know
    said = io.StringIO()
    sys.argv = [str(EXAMPLE)]
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    match = re.search(r"accuracy ([0-9.]+)", said.getvalue())
    print(f"{EXAMPLE.name}: {match[0] if match else 'no accuracy'}")
    return 0 if match and float(match[1]) > 0.5 else 1  # a tenth would be chance


if __name__ == "__main__":
    sys.exit(main())

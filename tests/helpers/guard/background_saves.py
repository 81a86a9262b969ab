"""Have checkpoints of any size written in the background, in processes that a test starts."""

import os
from importlib.machinery import SourceFileLoader
from types import ModuleType

VARIABLE = "VITKIT_TEST_BACKGROUND_SAVES"
"""The environment variable that asks for it, by any value."""


def install() -> None:
    """Change the constant of the module of checkpoints once it was run."""
    run = SourceFileLoader.exec_module

    def run_and_change(loader: SourceFileLoader, module: ModuleType) -> None:
        run(loader, module)
        if module.__name__ == "vitkit.training.checkpoint":
            vars(module)["BACKGROUND_BYTES"] = 0

    if os.environ.get(VARIABLE):
        SourceFileLoader.exec_module = run_and_change  # type: ignore[method-assign, assignment]

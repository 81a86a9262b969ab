"""Have checkpoints of any size written in the background, in processes that a test starts."""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

VARIABLE = "VITKIT_TEST_BACKGROUND_SAVES"
"""The environment variable that asks for it, by any value."""
_MODULE = "vitkit.training.checkpoint"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module of checkpoints as usual, and changes its constant once it was run."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == _MODULE else None
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def run_and_change(module: Any) -> None:
                run(module)
                module.BACKGROUND_BYTES = 0

            loader.exec_module = run_and_change
        return spec


def install() -> None:
    if os.environ.get(VARIABLE):
        sys.meta_path.insert(0, _Finder())

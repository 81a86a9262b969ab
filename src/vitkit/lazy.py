"""Load the names of a package when they are first used, so that its import does not wait for torch."""

import gc
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def find_homes(package: str) -> dict[str, str]:
    """Return the module of each name that a package imports for type checkers alone, `if TYPE_CHECKING`.

    Read from its source, so that a public name is written once.
    """
    module: Any = sys.modules[package]
    source = module.__loader__.get_data(module.__file__).decode()
    imports = re.findall(r"^    from (\S+) import (\S+) as ", source, re.MULTILINE)
    return {name: home for home, name in imports}


def load_lazily(
    package: str, homes: Mapping[str, str], names: list[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package.

    Args:
        package: its name.
        homes: the module that each name is loaded from.
        names: all public names, in the order of `__all__`.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # A full collection passes over all that torch has imported, a tenth of a second, and imports leave
        # nothing to collect.
        collects = gc.isenabled()
        gc.disable()
        try:
            return getattr(import_module(homes[name]), name)
        finally:
            if collects:
                gc.enable()

    return load, lambda: names

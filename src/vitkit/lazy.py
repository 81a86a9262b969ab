"""Load the names of a package when they are first used, so that its import does not wait for torch."""

import gc
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def load_lazily(package: str, *names: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__all__`, `__getattr__` and `__dir__` of a package.

    The names that it imports for type checkers alone, `if TYPE_CHECKING`, are loaded when they are used. They
    are read from its source, so that a public name is written once.

    Args:
        package: its name.
        names: further public names, which it has already.
    """
    module: Any = sys.modules[package]
    source = module.__loader__.get_data(module.__file__).decode()
    imports = re.findall(r"^    from (\S+) import (\S+) as ", source, re.MULTILINE)
    homes = {name: home for home, name in imports}

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

    public = sorted([*homes, *names])
    return public, load, lambda: public

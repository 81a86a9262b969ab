"""Import the packages of engines, where they are installed."""

import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from vitkit.engines.engine_config import EXTRAS, GraphEngine
from vitkit.errors import VitkitError

TELEMETRY = "openvino_telemetry"


def require_engine(engine: GraphEngine, *more: str) -> None:
    """Refuse an engine whose packages are not installed, without importing any.

    Args:
        engine: its name.
        more: packages that are needed as well.

    Raises:
        VitkitError: one is missing.
    """
    missing = [name for name in (*EXTRAS[engine], *more) if find_spec(name) is None]
    if missing:
        raise VitkitError(
            f"The engine {engine} needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed: pip install 'vitkit[{engine}]'."
        )


def import_package(name: str) -> Any:
    """Import a package of an engine that `require_engine` found; what it warns of is its makers' business.

    Raises:
        VitkitError: it is installed and does not work.
    """
    # OpenVINO and NNCF would tell their makers of every use, from a process of their own that needs a network
    # and leaves a traceback without one. They do without where this package cannot be imported, which None in
    # its place brings about.
    if TELEMETRY not in sys.modules:
        sys.modules[TELEMETRY] = None  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return import_module(name)
        except Exception as error:  # a broken installation raises what it likes
            raise VitkitError(
                f"{name} is installed and cannot be imported ({error}). Install it again: "
                f"pip install --force-reinstall {name.partition('.')[0]}"
            ) from error

"""The engines, the precisions that they compute in, and their packages: whether they are installed,
what they can compute, and their errors. Neither torch nor an engine is imported for it."""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from vitkit.errors import VitkitError
from vitkit.text import visible

GraphEngine = Literal["openvino", "onnxruntime"]
"""The engines that are handed a graph: each is an extra of the same name, and computes on the processor."""

GraphFormat = Literal["openvino", "onnx"]
"""The formats of a graph: that of OpenVINO, and that of ONNX Runtime."""

Engine = Literal["torch", "openvino", "onnxruntime"]
"""The programs that compute a model's logits."""

EnginePrecision = Literal["float32", "bfloat16", "int8"]
"""The precision of an engine's matrix products; int8 of ONNX Runtime is of the weights alone."""

DESCRIPTION = "engine.json"
"""The file by which the folder of an export is recognised, and which describes it."""

EXTRAS: dict[GraphEngine, tuple[str, ...]] = {
    "openvino": ("openvino",),
    "onnxruntime": ("onnxruntime", "onnx", "onnxscript"),
}
"""The packages that an engine needs to compute a checkpoint's graph; the first alone computes one that is
written."""

TELEMETRY = "openvino_telemetry"


def require_engine(engine: GraphEngine, *more: str, writes: bool = True) -> None:
    """Refuse an engine whose packages are not installed, without importing any.

    Args:
        engine: its name.
        more: packages that are needed as well.
        writes: whether a graph is to be written, and not only to be computed.

    Raises:
        VitkitError: one is missing.
    """
    packages = EXTRAS[engine] if writes else EXTRAS[engine][:1]
    missing = [name for name in (*packages, *more) if find_spec(name) is None]
    if missing:
        raise VitkitError(
            f"The engine {engine} needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed: pip install 'vitkit[{engine}]'."
        )


def import_package(name: str) -> Any:
    """Import a package of an engine, after `require_engine`; its warnings are silenced.

    Raises:
        VitkitError: it is installed and does not work.
    """
    # OpenVINO and NNCF would report every use to their makers, from a process of their own that needs a
    # network and leaves a traceback without one. They do not where this package cannot be imported, and None
    # in `sys.modules` makes the import fail.
    if TELEMETRY not in sys.modules:
        sys.modules[TELEMETRY] = None  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return import_module(name)
        except Exception as error:  # a broken installation may raise anything
            raise VitkitError(
                f"{name} is installed and cannot be imported ({error}). Install it again: "
                f"pip install --force-reinstall {name.partition('.')[0]}"
            ) from error


def has_bfloat16() -> bool:
    """Whether OpenVINO computes in bfloat16 on this processor."""
    return "BF16" in import_package("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def refuse_precision(engine: GraphEngine, precision: EnginePrecision) -> None:
    """Refuse a precision that an engine, or this processor, does not compute in.

    Raises:
        VitkitError: it does not, or a package is not installed.
    """
    if engine == "onnxruntime" and precision == "bfloat16":
        raise VitkitError(
            "ONNX Runtime computes in float32 or int8 on a processor, not in bfloat16. Leave the precision "
            "out, or take the engine openvino."
        )
    require_engine(engine, *(("nncf",) if (engine, precision) == ("openvino", "int8") else ()))
    if precision == "bfloat16" and not has_bfloat16():
        raise VitkitError(
            "This processor has no instructions for bfloat16 that OpenVINO uses, so that it would be no "
            "faster: take float32, or int8."
        )


@contextmanager
def refusing(engine: GraphEngine, task: str, advice: str) -> Iterator[None]:
    """Wrap any exception of an engine in a VitkitError."""
    try:
        yield
    except (VitkitError, OSError, MemoryError):
        raise
    except Exception as error:
        # Some messages have colours for a terminal.
        message = visible(" ".join(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", str(error)).split())[:200])
        raise VitkitError(f"{engine} cannot {task} ({type(error).__name__}: {message}). {advice}") from error

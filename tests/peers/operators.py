"""torchvision where its compiled half does not fit the torch beside it: timm imports it all the same."""

import importlib
import sys
from typing import Any

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_LIBRARIES: list[Any] = []  # a library that nobody holds is taken back


def register_missing_operators() -> None:
    """Name the operators that torchvision's import asks for, if it fails without; nothing here calls them."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        untyped: Any = torch.library
        library = untyped.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(operator + SCHEMA)
        _LIBRARIES.append(library)
    except ImportError:
        pass  # not installed: the cases that need it say so

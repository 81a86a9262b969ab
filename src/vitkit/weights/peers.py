"""Run other libraries' own models beside vitkit's, where they are installed."""

import contextlib
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.weights.format_names import Library

_PACKAGES = {"timm": "timm", "huggingface": "transformers"}
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def library_logits(library: Library, path: Path, images: Tensor) -> Tensor:
    """Compute the logits of images with a library's own model.

    Args:
        library: timm or huggingface.
        path: a checkpoint in its format.
        images: `(B, C, H, W)`, normalised.

    Returns:
        Logits `(B, K)`.

    Raises:
        VitkitError: the library is not installed, or cannot load the checkpoint.
    """
    package = _PACKAGES[library]
    folder = path if path.is_dir() else path.parent
    if not (folder / "config.json").exists():
        raise VitkitError(
            f"{package} needs a config.json beside the weights, and {folder} has none. Write them in its "
            f"format instead: --to {library} --against {library}."
        )
    try:
        module = import_library(package)
    except Exception as error:  # a broken installation raises anything
        raise VitkitError(
            f"{package} cannot be used here ({error}). Install it with: pip install {package}"
        ) from error
    try:
        if library == "timm":
            model: Any = module.create_model(f"local-dir:{folder}", pretrained=True)
        else:
            model = module.AutoModelForImageClassification.from_pretrained(str(folder))
        with torch.inference_mode():
            outputs = [model.eval()(images[i : i + 1]) for i in range(len(images))]
    except Exception as error:
        lines = str(error).strip().splitlines()[:3]
        raise VitkitError(f"{package} cannot run {path}: {' '.join(lines)}") from error
    return torch.cat([getattr(output, "logits", output) for output in outputs])


def import_library(package: str) -> Any:
    """Import a library, with a torchvision beside it that may be broken.

    torchvision's wheel registers its operators from a compiled library that does not load beside a CPU build
    of torch. timm imports torchvision when it is imported, transformers only when a model is made, so the
    operators are defined before either. Only the names of two are needed: neither is called here.
    """
    try:
        import_module("torchvision")
    except ModuleNotFoundError:
        pass  # nobody will import it
    except Exception:  # installed, and broken in a way of its own
        for operator in ("nms", "qnms"):
            with contextlib.suppress(RuntimeError):  # there already
                # PyTorch keeps such a definition until the program ends.
                torch.library.define(f"torchvision::{operator}", _SCHEMA)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]  # half imported
    return import_module(package)

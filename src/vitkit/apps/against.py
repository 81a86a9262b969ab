"""Other libraries' own models, run beside ours where they are installed. The only place that knows them."""

import contextlib
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitkit.errors import VitkitError

Library = Literal["timm", "huggingface"]

_PACKAGES = {"timm": "timm", "huggingface": "transformers"}


def library_logits(library: Library, path: Path, images: Tensor) -> Tensor:
    """What a library's own model makes of images.

    Args:
        library: which one.
        path: a checkpoint in its layout.
        images: `(B, C, H, W)`, normalised.

    Returns:
        Logits `(B, K)`.

    Raises:
        VitkitError: the library is not installed, or cannot load the checkpoint.
    """
    package = _PACKAGES[library]
    try:
        module = _imported(package)
    except Exception as error:  # a broken installation raises what it likes
        raise VitkitError(
            f"{package} cannot be used here ({error}). Install it with: pip install {package}"
        ) from error
    folder = path if path.is_dir() else path.parent
    try:
        if library == "timm":
            model: Any = module.create_model(f"local-dir:{folder}", pretrained=True)
        else:
            model = module.AutoModelForImageClassification.from_pretrained(str(folder))
        with torch.inference_mode():
            outputs = [model.eval()(images[i : i + 1]) for i in range(len(images))]
    except Exception as error:
        raise VitkitError(f"{package} cannot run {path}: {error}") from error
    return torch.cat([getattr(output, "logits", output) for output in outputs])


def _imported(package: str) -> Any:
    if package == "timm":
        # torchvision's wheel registers its operators from a library that does not load beside a CPU build of
        # torch; timm needs the name of one of them at import, and never calls it here.
        with contextlib.suppress(RuntimeError):  # there already
            torch.library.define(
                "torchvision::nms", "(Tensor dets, Tensor scores, float threshold) -> Tensor"
            )
    return import_module(package)

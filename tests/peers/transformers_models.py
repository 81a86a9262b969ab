"""Every image classifier of transformers, small and with random weights: read and equal, or refused.

    python -m tests.peers.transformers_models        (inside the environment of scripts/test-peers)

Prints a line for each and the counts at the end. Exits with 1 if one is read and differs, or fails in another
way than by a sentence.
"""

import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.peers.case import tally
from tests.peers.huggingface_cases import transformers
from vitkit import load_model
from vitkit.errors import VitkitError

ALLOWED = 1e-5
"""Of the largest logit."""
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}
VISION = {name: value for name, value in SMALL.items() if name != "num_labels"}
TEXT = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def small_config(kind: Any) -> Any:
    """Make a configuration with as many of the small numbers as its class takes."""
    names = set(vars(kind())) | {"num_labels"}
    fields = {name: value for name, value in SMALL.items() if name in names}
    if "vision_config" in names:
        fields = {"vision_config": VISION, "text_config": TEXT, "num_labels": 5}
    return kind(**fields)


def outcome(model: Any, folder: Path) -> tuple[str, str]:
    """Read one model: ("equal" | "DIFFERS" | "refused", why)."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    model.save_pretrained(folder)
    try:
        ours = load_model(folder)
    except VitkitError as error:
        return "refused", str(error).split(": ", 1)[-1]
    images = torch.randn(2, 3, *ours.config.image_size, generator=generator)
    with torch.no_grad():
        expected, actual = model(images).logits, ours(images)
    difference = float((actual - expected).abs().max() / expected.abs().max())
    return ("equal" if difference <= ALLOWED else "DIFFERS"), f"{difference:.1e}"


def outcomes() -> Iterator[tuple[str, str, str]]:
    for config, models in transformers().MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING.items():
        for kind in models if isinstance(models, tuple) else (models,):
            try:
                model = kind(small_config(config)).eval()
                with tempfile.TemporaryDirectory() as folder:
                    said, why = outcome(model, Path(folder))
            except Exception as error:  # no such small model, or one that is not called with images alone
                said, why = "not made", f"{type(error).__name__}: {error}"
            yield said, kind.__name__, why


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("vitkit").setLevel(logging.ERROR)
    sys.exit(tally(outcomes()))

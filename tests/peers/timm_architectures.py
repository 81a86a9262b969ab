"""Every ViT and BiT architecture of timm, one layer deep: read and equal, or refused by name.

Where `vitkit.create_model` takes the name too, it must make the configuration that is read from timm's file.

    python -m tests.peers.timm_architectures        (inside the environment of scripts/test-peers)

Prints a line for each architecture and the counts at the end. Exits with 1 if one is read and differs.
"""

import fnmatch
import gc
import importlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.peers.case import tally
from tests.peers.timm_cases import BIT_ALLOWED, VIT_ALLOWED, compare, randomize
from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.jobs.convert import import_library
from vitkit.models.config import ViTConfig
from vitkit.weights.create import parse_timm_name, timm_config

PATTERNS = ("vit_*", "deit*", "flexivit*", "eva*", "beit*", "aimv2*", "naflexvit*", "resnetv2_*bit*")

TOO_WIDE = ("resnetv2_50x3_bit", "resnetv2_101x3_bit", "resnetv2_152x2_bit", "resnetv2_152x4_bit")
"""timm's BiTs take no number of layers; these have 200 to 900 million parameters."""


def architectures() -> list[str]:
    """The names of timm that the patterns match."""
    timm: Any = importlib.import_module("timm")
    names = timm.list_models(pretrained=False)
    return sorted(name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in PATTERNS))


def outcome(name: str, folder: Path) -> tuple[str, str]:
    """Read one architecture with random weights: ("equal" | "DIFFERS" | "refused" | "not made", why)."""
    timm: Any = importlib.import_module("timm")
    bit = name.startswith("resnetv2")
    if name in TOO_WIDE:
        return "not made", "its layers cannot be left out, and all of them are too much for a small machine"
    shallow: dict[str, Any] = {} if bit else {"depth": 1}
    try:
        theirs = timm.create_model(name, num_classes=10, **shallow).eval()
    except Exception as error:  # architectures that take no depth, or that are broken in timm itself
        return "not made", f"{type(error).__name__}: {error}"
    randomize(theirs)
    size = theirs.default_cfg["input_size"][-1]
    timm.models.save_for_hf(theirs, str(folder), safe_serialization=True)
    try:
        ours = load_model(folder)
    except VitkitError as error:
        return "refused", str(error).split(": ", 1)[-1]
    if (parsed := parse_timm_name(name)) is not None:
        named = timm_config(parsed, 10, parsed.side)
        named = replace(named, depth=1) if isinstance(named, ViTConfig) else named
        if replace(named, image_size=ours.config.image_size) != ours.config:
            return "DIFFERS", f"{named} is not {ours.config}"
    try:
        case = compare(name, "timm -> vitkit", size, theirs, ours, BIT_ALLOWED if bit else VIT_ALLOWED)
    except AssertionError as error:
        return "DIFFERS", str(error)
    return ("equal" if case.passed else "DIFFERS"), f"{case.difference:.1e}"


def outcomes(names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    for name in names:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            kind, why = outcome(name, Path(folder))
        yield kind, name, why
        gc.collect()


if __name__ == "__main__":
    torch.set_num_threads(1)
    import_library("timm")
    sys.exit(tally(outcomes(sys.argv[1:] or architectures())))

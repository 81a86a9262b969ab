"""ViT and BiT of transformers, its weights in vitkit and vitkit's in it.

The weights are random, as large as trained ones: nothing is downloaded. Other sizes are those of models made
for another size, 384 or 96x64, and BiT's, which takes any; `tests.peers.families` resizes positions.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.peers.case import Case
from tests.peers.timm_cases import compare
from vitkit import load_model
from vitkit.jobs.convert import import_library
from vitkit.models.build import build_model
from vitkit.models.config import ResNetConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig, model_config, vit_config
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import ModelCard

ALLOWED = 1e-4
"""Of logits of about 1: float32, sums in another order."""

TINY = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
TINY_WIDE = TINY | {"image_size": [96, 64], "patch_size": [16, 8], "hidden_act": "gelu_new"}
UNUSUAL_BIT = {"embedding_size": 48, "hidden_sizes": [96, 192, 64], "depths": [1, 2, 1], "num_groups": 8}
SMALL_BIT = {"embedding_size": 32, "hidden_sizes": [128, 256, 512], "depths": [2, 2, 1]}


def cases() -> Iterator[Case]:
    """Every comparison, one after another; each model is gone before the next one is made."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _theirs_in_ours(Path(folder) / "theirs")
        yield from _ours_in_theirs(Path(folder) / "ours")


def _theirs_in_ours(folder: Path) -> Iterator[Case]:
    library = transformers()
    direction = "Hugging Face -> vitkit"
    vits: dict[str, dict[str, Any]] = {
        "ViT-Ti/16": TINY,
        "ViT-Ti/16, tanh GELU": TINY | {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
        "ViT-Ti/16x8, 96x64": TINY_WIDE,
        "ViT-Ti/16, quick GELU": TINY | {"hidden_act": "quick_gelu"},
        "ViT-B/16": {},
        "ViT-B/32, 384": {"image_size": 384, "patch_size": 32, "hidden_act": "gelu_fast"},
    }
    for name, fields in vits.items():
        their_config = library.ViTConfig(**fields, num_labels=10)
        yield _from_theirs(library.ViTForImageClassification(their_config), name, direction, folder)
    yield _from_theirs(library.ViTModel(library.ViTConfig(**TINY)), "ViT-Ti/16, pooler", direction, folder)
    bits = {"BiT, three stages": SMALL_BIT, "BiT, 8 groups, other channels": UNUSUAL_BIT, "BiT-R50x1": {}}
    for name, fields in bits.items():
        theirs = library.BitForImageClassification(library.BitConfig(**fields, num_labels=10))
        # Even and odd: the only sizes at which a padding could differ.
        for side in (96, 97):
            yield _from_theirs(theirs, name, direction, folder, (side, side))


def _ours_in_theirs(folder: Path) -> Iterator[Case]:
    library = transformers()
    direction = "vitkit -> Hugging Face"
    base, tiny = vit_config("ViT-B/16", 10), vit_config("ViT-Ti/16", 10)
    wide = vit_config("ViT-Ti/16x8", 10, (96, 64))
    bit = model_config("BiT-R50x1", 10, 97)
    assert isinstance(bit, ResNetConfig)
    theirs_exactly = replace(bit, standardization_eps=1e-8)
    classifiers: dict[str, ModelConfig] = {
        "ViT-Ti/16": tiny,
        "ViT-Ti/16, erf GELU": replace(tiny, gelu="erf"),
        "ViT-Ti/16, quick GELU": replace(tiny, gelu="quick"),
        "ViT-Ti/16x8, 96x64": wide,
        "ViT-B/16": base,
        "BiT-R50x1": theirs_exactly,
        "BiT, 8 groups, other channels": replace(
            theirs_exactly, layers=(1, 2, 1), root_width=48, stage_widths=(96, 192, 64), groups=8
        ),
        "BiT-R50x1, epsilon 1e-10": bit,
    }
    for name, config in classifiers.items():
        ours = build_model(config, torch.Generator().manual_seed(0)).eval()
        kind = library.ViTForImageClassification if "ViT" in name else library.BitForImageClassification
        yield _to_theirs(ours, name, direction, folder, kind)
    headless = replace(tiny, num_classes=0, representation_size=100)
    ours = build_model(headless, torch.Generator().manual_seed(0)).eval()
    yield _to_theirs(ours, "ViT-Ti/16, pooler", direction, folder, library.ViTModel)


def _from_theirs(
    theirs: Any, name: str, direction: str, folder: Path, size: tuple[int, int] | None = None
) -> Case:
    _draw(theirs)
    theirs.eval().save_pretrained(folder)
    ours = load_model(folder, image_size=size)
    return compare(name, direction, ours.config.image_size, answer_of(theirs), ours, ALLOWED)


def _to_theirs(ours: ImageModel, name: str, direction: str, folder: Path, kind: Any) -> Case:
    _draw(ours)
    ours.card = ModelCard(class_names=tuple(f"class {i}" for i in range(ours.config.num_classes)))
    save_model(ours, folder, "huggingface")
    theirs, report = kind.from_pretrained(folder, output_loading_info=True)
    wrong = {what: keys for what, keys in report.items() if keys}
    assert not wrong, f"{name}: not every key found its place: {wrong}"
    if ours.card.class_names:
        assert tuple(theirs.config.id2label.values()) == ours.card.class_names
    return compare(name, direction, ours.config.image_size, answer_of(theirs.eval()), ours, ALLOWED)


def answer_of(model: Any) -> Callable[..., Tensor]:
    """Return what computes the logits of a model, or what it pools where it has no head."""

    def answer(images: Tensor, **options: Any) -> Tensor:
        outputs = model(images, **options)
        return outputs.logits if "logits" in outputs else outputs.pooler_output  # type: ignore[no-any-return]

    return answer


@torch.no_grad()
def _draw(model: nn.Module) -> None:
    """Weights for which the logits are near 1 and no part is without effect."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and "position" not in name and "token" not in name:
            deviation = parameter[0].numel() ** -0.5
            nn.init.normal_(parameter, std=deviation, generator=generator)
        elif parameter.ndim == 1 and name.endswith("weight"):
            nn.init.normal_(parameter, mean=1, std=0.1, generator=generator)
        else:
            nn.init.normal_(parameter, std=0.1, generator=generator)


def transformers() -> Any:
    """Import the library, which then prints neither advice nor bars."""
    import_library("timm")  # whose torchvision may be broken
    library = import_library("transformers")
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    return library

"""The names that other libraries give to models of the zoo, for the message about an unknown name."""

import re
from collections.abc import Sequence

SIZES = {
    "tiny": "Ti",
    "small": "S",
    "base": "B",
    "large": "L",
    "huge": "H",
    "giant": "g",
    "gigantic": "G",
    "b": "B",
    "l": "L",
    "h": "H",
}
"""The sizes of timm, Hugging Face and torchvision (one letter), and the zoo's names for them."""

# timm: vit_base_patch16_224.augreg_in21k, deit_small_patch16_224. Hugging Face: google/vit-base-patch16-224.
# Other words (clip, siglip, dinov2, rope, miil; deit3) stand for parts that the zoo's ViT of this size lacks.
_PATCHES = re.compile(
    r"(?:.*/)?(?:vit|deit)[_-](?P<size>[a-z]+)[_-]patch(?P<patch>\d+)(?:[_-]\d+)?"
    r"(?:[_-](?:in\d+k|dino|mae|sam))?(?:\..*)?"
)
# timm: vit_base_r50_s16_224, vit_tiny_r_s16_p8_224.
_HYBRID = re.compile(r"(?:.*/)?vit_(?P<size>[a-z]+)_(?P<trunk>r\d*)_s(?P<stride>\d+)(?:_p\d+)?_.*")
# torchvision: vit_b_16.
_LETTER = re.compile(r"vit_(?P<size>[blh])_(?P<patch>\d+)")
# timm: resnetv2_50x1_bitm. Hugging Face: google/bit-50.
_BIT = re.compile(r"(?:.*/)?resnetv2_(?P<depth>\d+)x(?P<width>\d+)_?bit.*")


def name_here(name: str) -> str | None:
    """Translate a name of timm, Hugging Face or torchvision; None where the zoo has no such architecture."""
    lower = name.lower()
    if match := _PATCHES.fullmatch(lower) or _LETTER.fullmatch(lower):
        size = SIZES.get(match["size"])
        return size and f"ViT-{size}/{match['patch']}"
    if match := _HYBRID.fullmatch(lower):
        size = SIZES.get(match["size"])
        return size and f"{match['trunk'].upper()}+ViT-{size}/{match['stride']}"
    if match := _BIT.fullmatch(lower):
        return f"BiT-R{match['depth']}x{match['width']}"
    return None


def same_letters(name: str, names: Sequence[str]) -> list[str]:
    """List the names of `names` that differ from `name` in case and punctuation alone."""
    meant, *others = (re.sub("[^a-z0-9+]", "", text.lower()) for text in (name, *names))
    return [other for other, letters in zip(names, others, strict=True) if letters == meant]

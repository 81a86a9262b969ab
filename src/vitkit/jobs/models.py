"""List the models that can be made by name, and their sizes."""

import difflib
import fnmatch
from collections.abc import Sequence

from vitkit.errors import VitkitError
from vitkit.models import measure, zoo
from vitkit.models.config import Size
from vitkit.result import Listing, Table
from vitkit.text import format_count, pluralize


def measure_models(*patterns: str, num_classes: int = 1000, image_size: Size | None = None) -> Listing:
    """List models with their sizes. Other patches, sizes and options can be named too: ViT-96x6x3/4-gap.

    Args:
        patterns: patterns such as 'ViT-B*', or parts of names; left out, all models are listed.
        num_classes: number of classes of the head.
        image_size: height and width in pixels, or one number for both; left out, 224.

    Raises:
        VitkitError: as `matching`, or sizes that do not fit.
    """
    rows, sizes = [], []
    for name in matching(patterns):
        config = zoo.model_config(name, num_classes, image_size or 224)
        heads = "–" if config.attention == "none" else str(config.num_heads)
        tokens = "–" if config.num_tokens is None else str(config.num_tokens)
        # A ResNet's layers are the units of each stage; a hybrid has both.
        shape = config.layer_summary, str(config.width), heads, tokens
        weights, flops = measure.parameters(config), measure.forward_flops(config, head=True)  # with the head
        rows.append((name, *shape, f"{weights:,}", format_count(flops)))
        sizes.append({"name": name, "shape": list(shape), "parameters": weights, "flops": flops})
    headings = ("model", "layers", "width", "heads", "tokens", "parameters", "FLOPs per image")
    uses = ("vitkit cost NAME", "vitkit train PATH --model NAME", "vitkit.create_model(NAME)   (from Python)")
    return Listing(pluralize(len(rows), "model"), (Table(headings, tuple(rows)),), uses, {"models": sizes})


def matching(patterns: Sequence[str]) -> list[str]:
    """List the names that any of the patterns matches, in order; all names without a pattern.

    A pattern that no name matches is tried without regard to case, then, without wildcards, as a part of a
    name, then as a name of the grammar.

    Raises:
        VitkitError: a pattern that is none of these.
    """
    models = zoo.list_models()
    if not patterns:
        return models
    return list(dict.fromkeys(name for pattern in patterns for name in _matching(pattern, models)))


def _matching(pattern: str, models: list[str]) -> list[str]:
    """List the names that a pattern matches."""
    small = pattern.lower()
    names = fnmatch.filter(models, pattern) or [
        name for name in models if fnmatch.fnmatch(name.lower(), small)
    ]
    if not names and not set(pattern) & set("*?["):
        names = [name for name in models if small in name.lower()]
        if not names:  # the zoo's grammar can make others
            try:
                zoo.model_config(pattern)
                return [pattern]
            except VitkitError as error:
                if not str(error).startswith("No model is named"):
                    raise  # a name whose numbers do not fit
    if names:
        return names
    lowered = {name.lower(): name for name in models}
    near = [lowered[name] for name in difflib.get_close_matches(small, lowered)]
    hint = f"Near it: {', '.join(near)}." if near else "All are listed by vitkit models."
    raise VitkitError(f"No name matches '{pattern}'. {hint}")

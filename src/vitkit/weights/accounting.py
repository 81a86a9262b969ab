"""Tensors into a model with every key accounted for: used, left out on purpose, missing or unexpected."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.models.build import build_empty, build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig
from vitkit.weights.files.source import Source
from vitkit.weights.table import Row, Translation

SHOWN = 20
"""Lines of an error's table before it is cut short."""

WEIGHT_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The types whose numbers are weights as they stand. Others (integers, eight-bit floats) stand for weights by
a rule that the file does not say, a scale for instance."""


def translate(source: Source, translation: Translation) -> dict[str, Tensor]:
    """Read the tensors of a file under vitkit's names, one at a time, so that no two sets of weights are
    held.

    Raises:
        VitkitError: a key is missing, or unexpected and not left out on purpose: a table of all of them; or a
            tensor holds anything but floating-point numbers of 16 to 64 bits.
    """
    source = translation.source or source
    wanted = [name for row in translation.rows for name in row.theirs]
    missing = [f"  {name}: missing" for name in wanted if name not in source]
    accounted = {*wanted, *translation.ignored}
    unexpected = [
        f"  {name}: unexpected, {tuple(shape)}"
        for name, shape in source.shapes.items()
        if name not in accounted
    ]
    if missing or unexpected:
        raise VitkitError(
            f"{source.path} does not hold the weights of this architecture, {len(missing)} of "
            f"{len(wanted)} missing, {len(unexpected)} unexpected:\n{_table(missing + unexpected)}"
        )
    dtype = None if translation.as_stored else torch.float32  # the type in which the originals compute
    return {row.ours: _read(source, row, dtype) for row in translation.rows}


def _read(source: Source, row: Row, dtype: torch.dtype | None) -> Tensor:
    """Read the tensors of one row and make the parameter of them."""
    tensors = [_weights(source, name) for name in row.theirs]
    try:
        tensor = row.read(tensors)
    except (RuntimeError, ValueError, IndexError) as error:
        shapes = ", ".join(f"{name} {tuple(source.shapes[name])}" for name in row.theirs)
        raise VitkitError(
            f"{source.path}: {row.ours} cannot be made of {shapes}: these are the shapes of another "
            f"architecture ({str(error).splitlines()[0]})."
        ) from error
    tensor = tensor.to(dtype or tensor.dtype).contiguous()
    # What an archive stores begins at any byte. Most rows turn or join what they read, which copies it; what
    # is used as it stands has to begin at a multiple of its numbers' size, as compiled code expects.
    return tensor if tensor.data_ptr() % tensor.element_size() == 0 else tensor.clone()


def _weights(source: Source, name: str) -> Tensor:
    """Read one tensor whose numbers are weights."""
    tensor = source.read(name)
    if tensor.dtype not in WEIGHT_TYPES:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise VitkitError(
            f"{source.path}: {name}: expected floating-point weights of 16 to 64 bits, found {kind}. If the "
            "model is quantised, dequantise it with the program that quantised it, and save it as float32."
        )
    return tensor


def names_that_are_not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors that hold NaN or infinity.

    A sum shows them in one pass over the memory. It may also overflow, so only suspects are looked at number
    by number.
    """
    return [
        name
        for name, tensor in tensors.items()
        if not math.isfinite(_sum(tensor)) and not bool(tensor.isfinite().all())
    ]


def _sum(tensor: Tensor) -> float:
    """Add up a tensor, in float32 at least: a sum in 16 bits overflows soon."""
    return float(tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)))


def fill(model: ImageModel, tensors: Mapping[str, Tensor]) -> ImageModel:
    """Have a model without memory take over tensors, so that two sets of weights are never held."""
    model.load_state_dict(tensors, assign=True)  # the model takes the tensors themselves: nothing is copied
    for parameter in model.parameters():  # a tensor that is assigned brings its own flag along
        parameter.requires_grad_(True)
    model.compute_buffers()  # they are in no file, and were not computed when the model had no memory
    # Buffers follow the type of the weights, so that a bfloat16 model takes bfloat16 images throughout.
    dtype = next(iter(tensors.values())).dtype
    for name, buffer in list(model.named_buffers()):
        owner = model.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], buffer.to(dtype))
    return model


def check(config: ModelConfig, tensors: Mapping[str, Tensor], source: str) -> ImageModel:
    """Build the model of `config` without memory, and hold the tensors against its parameters.

    Raises:
        VitkitError: a parameter is missing, unexpected or of another shape: a table of all of them.
    """
    layers = config.num_layers
    if layers > len(tensors):  # before a model of so many is built, which takes its time
        raise VitkitError(
            f"{source} does not hold the weights of this model: its description says {layers:,} layers, and "
            f"it has {len(tensors):,} tensors."
        )
    model = build_empty(lambda: build_model(config))
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in tensors.items()}
    lines = [
        f"  {key}: expected {_shape(expected.get(key))}, found {_shape(found.get(key))}"
        for key in sorted(expected.keys() | found.keys())
        if expected.get(key) != found.get(key)
    ]
    if lines:
        raise VitkitError(f"{source} does not hold the weights of this model:\n{_table(lines)}")
    return model


def _table(lines: Iterable[str]) -> str:
    """Join the lines of an error, cut short after `SHOWN`."""
    lines = list(lines)
    return "\n".join(lines[:SHOWN] + ([f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []))


def _shape(shape: tuple[int, ...] | None) -> str:
    return "nothing" if shape is None else str(shape)

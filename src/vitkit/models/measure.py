"""Measure a model: its parameters, the FLOPs of its products, and the memory of its passes.

Parameters are counted on the meta device. FLOPs follow a short rule for each part, which a test compares with
PyTorch's own counter. Memory is observed: the model makes its passes, in the chosen way of computing, while a
`Ledger` notes when each storage comes and goes. The arithmetic is left out, so that this takes a fraction of
a second, and memory is reserved but never written. Two small batches tell how many bytes of a storage belong
to each image and how many to the batch.

A multiply-accumulate (MAC) is two floating-point operations (FLOPs). Counted are matrix products and
convolutions, as the paper's Table 6 does; norms, softmax, activations, pooling and additions are below one
percent. A convolution near the edge multiplies zeros of the padding: by default these products do not count,
which reproduces the paper's ResNets; counting them (`padding=True`) gives 3.6 (R50x1) to 4.4 (R152x2)
percent more.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # documented as the way to observe operations

from vitkit.errors import VitkitError
from vitkit.models import fast
from vitkit.models.axial import AxialMixing
from vitkit.models.build import build_empty
from vitkit.models.config import PLAIN, Compute, ModelConfig, halve
from vitkit.models.fast import BlockFunction
from vitkit.models.image_model import ImageModel
from vitkit.models.parts import AttentionPool, ConvStem
from vitkit.models.resnet import ResNet, ResNetStem
from vitkit.models.vit import ViT

FLOAT = 4
"""Bytes of a float32 number."""

Size = tuple[int, int]
"""`(rows, columns)` of an image or a feature map."""


outline = functools.lru_cache(maxsize=4)(build_empty)
"""A function that builds a model without memory, once for all questions about it."""


def parameters(config: ModelConfig) -> int:
    """Count the trainable parameters of a model.

    Raises:
        VitkitError: no memory could hold such a model.
    """
    return sum(parameter.numel() for parameter in outline(config).parameters())


# FLOPs.


def forward_flops(config: ModelConfig, *, head: bool = False, padding: bool = False) -> int:
    """Count the floating-point operations of one forward pass of one image: two for each
    multiply-accumulate.

    Args:
        config: of any model of the zoo's grammar.
        head: whether the classification head (and the pre-training head's hidden layer) counts.
        padding: whether to count the products of convolutions with the zeros around a feature map.
    """
    model = outline(config)
    if isinstance(model, ResNet):
        macs = _resnet_macs(model, config.image_size, padding)
    else:
        assert isinstance(model, ViT)
        vit, stem = model.config, cast("Any", model.stem)
        tokens, width, (rows, columns) = vit.num_tokens, vit.width, vit.grid
        # Every stem ends in a projection of the cells of the grid. The original's is that alone.
        macs = rows * columns * getattr(stem, "projection", stem).weight.numel()
        if isinstance(stem, ResNetStem):
            macs += _resnet_macs(stem, vit.image_size, padding)
        elif isinstance(stem, ConvStem):
            # Pixels that no patch covers are cut off.
            seen = (rows * vit.patch_size[0], columns * vit.patch_size[1])
            macs += _convolution_macs(stem.convolutions, seen, padding)[0]
        # A token attends to all tokens, in an axial model to its row and then to its column. Each adds two
        # products (QK^T, and its softmax times V). Relative positions multiply every query with the embedding
        # of every offset.
        keys = rows + columns if vit.attention == "axial" else tokens
        offsets = 2 * tokens - 1 if vit.position == "relative" else 0
        macs += tokens * (_weights(model.blocks) + vit.depth * (2 * keys + offsets) * width)
        if isinstance(model.pooling, AttentionPool):
            # Keys and values of all tokens and two products with one query; query, output and MLP of one row.
            macs += 2 * tokens * width**2 + 2 * tokens * width + 2 * width**2 + _weights(model.pooling.mlp)
    if head:
        # Without pooling every token has logits of its own.
        rows = config.num_tokens if config.num_tokens and config.pool == "none" else 1
        macs += rows * _weights(model.head, getattr(model, "pre_logits", None))
    return 2 * macs


def training_flops(config: ModelConfig, images: int = 1, *, head: bool = False, padding: bool = False) -> int:
    """Count the floating-point operations of training on `images` images; one seen twice counts twice.

    Three times the forward pass: every matrix product has two of its size in the backward pass.
    """
    return 3 * forward_flops(config, head=head, padding=padding) * images


def _weights(*modules: nn.Module | None) -> int:
    """Count the weights of dense layers: the multiply-accumulates of one row of their input."""
    layers = (layer for module in modules if module for layer in module.modules())
    return sum(layer.weight.numel() for layer in layers if isinstance(layer, nn.Linear))


def _resnet_macs(model: ResNet | ResNetStem, image_size: Size, padding: bool) -> int:
    """Count the MACs of a root and its units."""
    macs, size = _convolution_macs([model.root], image_size, padding)
    size = halve(size)  # max-pooling
    for unit in (unit for stage in model.stages for unit in stage.children()):
        shortcut = [] if unit.proj is None else [unit.proj]
        macs += _convolution_macs(shortcut, size, padding)[0]
        branch, size = _convolution_macs([unit.conv1, unit.conv2, unit.conv3], size, padding)
        macs += branch
    return macs


def _convolution_macs(parts: Iterable[Any], size: Size, padding: bool) -> tuple[int, Size]:
    """Count the MACs of convolutions one after another, and give the size of the last one's feature map.

    Args:
        parts: convolutions, `StdConv2d` or PyTorch's, and axial attention in the place of one.
        size: of the input.
        padding: as for `forward_flops`.
    """
    macs = 0
    for part in parts:
        stride = part.stride[0] if isinstance(part, nn.Conv2d) else part.stride
        if isinstance(part, AxialMixing):
            channels, (rows, columns) = part.rows.qkv.in_channels, size
            # Along each of the two axes qkv has 2C outputs. Three products are over C/2 channels: query and
            # key, query and position, key and position. Two sums are over C: values and their positions.
            attention = (rows + columns) * (3 * (channels // 2) + 2 * channels)
            macs += rows * columns * (2 * 2 * channels**2 + attention)
        else:
            outputs, inputs, kernel, _ = part.weight.shape
            symmetric = part.padding != "same"
            rows, columns = (_count_taps(side, kernel, stride, symmetric, padding) for side in size)
            macs += outputs * inputs * rows * columns
        size = (-(-size[0] // stride), -(-size[1] // stride))
    return macs, size


def _count_taps(size: int, kernel: int, stride: int, symmetric: bool, padding: bool) -> int:
    """Count the pairs of an output and a weight of the kernel that lies on the input, along one axis.

    Rows and columns are independent: the pairs of both axes are multiplied. `symmetric` and `padding` are as
    for `StdConv2d` and `forward_flops`.
    """
    outputs = -(-size // stride)
    if padding:
        return outputs * kernel
    # TensorFlow's SAME pads only as much as the outputs need, and an odd zero comes after the input.
    needed = max((outputs - 1) * stride + kernel - size, 0)
    before = kernel // 2 if symmetric else needed // 2
    starts = (output * stride - before for output in range(outputs))
    return sum(min(start + kernel, size) - max(start, 0) for start in starts)


# Memory.


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that a training step needs, by purpose."""

    weights: int
    optimizer_state: int
    average: int
    """The running average of the weights, if there is one."""
    images: int
    """The batch, as uint8 pixels."""
    gradients: int
    """The gradients of all weights, at the end of the backward pass."""
    activations: int
    """Saved for the backward pass, at the end of the forward pass."""
    temporaries: int
    """Gradients of activations, at the moment when they are largest."""
    peak: int
    """The most that is alive at one time: less than the sum, for gradients come as activations go."""


@dataclass(frozen=True)
class InferenceMemory:
    """Bytes that prediction needs, by purpose."""

    weights: int
    images: int
    activations: int
    """Alive at the moment when they are largest."""
    peak: int


def training_memory(
    config: ModelConfig,
    batch_size: int,
    compute: Compute = PLAIN,
    block: BlockFunction | None = None,
    *,
    state_bytes: int = 2 * FLOAT,
    average: bool = False,
    accumulate: bool = False,
    recompute: bool = False,
) -> TrainingMemory:
    """Measure the memory of one update of all weights by classification, in bytes.

    Not counted: PyTorch's own memory, the allocator's gaps, and the workspaces that its libraries take
    inside an operation.

    Args:
        config: of any model of the zoo's grammar.
        batch_size: images at a time: the micro-batch, where there is one.
        compute: the way in which the model computes.
        block: the function that computes a block where `compute.block` is "compiled".
        state_bytes: bytes that the optimiser stores for each weight; left out, AdamW's two moments.
        average: whether there is a running average of the weights.
        accumulate: whether gradients of earlier micro-batches are there while the forward pass runs.
        recompute: whether layers are computed again in the backward pass.

    Raises:
        VitkitError: memory for a few images, which is never written, cannot even be reserved.
    """
    observed = _observe(config, batch_size, compute, block, training=True, recompute=recompute)
    count = parameters(config)
    weights = gradients = FLOAT * count
    images = batch_size * _pixels(config)
    # The update begins with all gradients; those of earlier micro-batches are there from the beginning.
    highest = max(observed.most(gradients=not accumulate) + (gradients if accumulate else 0), gradients)
    if state_bytes < FLOAT:  # SGD's momentum in bfloat16: all of it is float32 during the update
        highest = max(highest, gradients + weights)
    lasting = weights + count * state_bytes + (weights if average else 0) + images
    return TrainingMemory(
        weights=weights,
        optimizer_state=count * state_bytes,
        average=weights if average else 0,
        images=images,
        gradients=gradients,
        activations=observed.saved(),
        temporaries=observed.temporaries(),
        peak=lasting + highest,
    )


def inference_memory(
    config: ModelConfig, batch_size: int, compute: Compute = PLAIN, block: BlockFunction | None = None
) -> InferenceMemory:
    """Measure the memory of predicting one batch, without gradients, in bytes.

    Args:
        config, batch_size, compute, block: as for `training_memory`.
    """
    activations = _observe(config, batch_size, compute, block, training=False).most()
    weights, images = FLOAT * parameters(config), batch_size * _pixels(config)
    return InferenceMemory(weights, images, activations, weights + images + activations)


def _pixels(config: ModelConfig) -> int:
    """Count the numbers of one image."""
    return config.in_channels * config.image_size[0] * config.image_size[1]


@dataclass
class Span:
    """The time in which a storage was there, by the numbers of operations."""

    born: int
    """The operation that made it."""
    bytes: int
    died: int | None = None
    """The last operation before it was freed; None where it stayed."""


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes when each storage comes and goes, by the number of the operation; most are not computed.

    Args:
        model, images: the parameters, buffers and images, which are not counted.
    """

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.time = self.forward_end = 0
        """The last operation so far, and the last one of the forward pass."""
        self.spans: list[Span] = []
        own = [*model.parameters(), *model.buffers(), images]
        self.uncounted = {address(tensor) for tensor in own}
        self.alive: dict[int, Span] = {}

    # PyTorch's default wraps the method below so that its first call imports the compiler, for seconds.
    _should_skip_dynamo = classmethod(lambda cls: False)

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.time += 1
        result = _shaped(func, args, kwargs or {})
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if not isinstance(tensor, Tensor):
                continue
            key, storage = address(tensor), tensor.untyped_storage()
            if key not in self.alive and key not in self.uncounted:
                span = self.alive[key] = Span(self.time, storage.nbytes())
                self.spans.append(span)
                # Called when the storage is freed, whether Python, autograd or autocast's cache held it last;
                # not for storages that are left when the program ends.
                weakref.finalize(storage, self._gone, key).atexit = False
        return result

    def _gone(self, key: int) -> None:
        if (span := self.alive.pop(key, None)) is not None:
            span.died = self.time

    def saved(self) -> int:
        """Count the bytes that autograd has saved at the end of the forward pass."""
        made = (span for span in self.spans if span.born <= self.forward_end)
        return sum(span.bytes for span in made if span.died is None or span.died > self.forward_end)

    def temporaries(self) -> int:
        """Count the bytes of gradients of activations, at the moment of the backward pass with the most."""
        backward = (span for span in self.spans if span.born > self.forward_end)
        return self._most(span for span in backward if span.died is not None)  # gradients of weights stay

    def most(self, gradients: bool = True) -> int:
        """Count the most bytes that are alive at one time.

        Args:
            gradients: whether gradients of weights stay; else they are added to earlier ones and gone.
        """
        return self._most(
            replace(span, died=span.born)
            if not gradients and span.born > self.forward_end and span.died is None
            else span
            for span in self.spans
        )

    def _most(self, spans: Iterator[Span]) -> int:
        """Add up the bytes that are alive after each operation, and give the largest sum."""
        changes = [0] * (self.time + 2)
        for span in spans:
            changes[span.born] += span.bytes
            if span.died is not None:
                changes[span.died + 1] -= span.bytes
        return max(accumulate(changes))


def address(tensor: Tensor) -> int:
    """Give the address of a tensor's storage: tensors of the same memory have the same."""
    return int(tensor.untyped_storage()._cdata)


ShapeRule = Callable[..., Any]
"""A function of an operation's arguments that makes its result without the numbers."""


def _windows(x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> list[int]:
    """Give the rows and columns of windows over a feature map."""
    sides = zip(x.shape[2:], kernel, stride, padding, strict=True)
    return [(side + 2 * border - size) // step + 1 for side, size, step, border in sides]


def _pooled(
    x: Tensor, kernel: list[int], stride: list[int], padding: Sequence[int] = (0, 0)
) -> tuple[Tensor, ...]:
    both = [*padding, *padding] if len(padding) == 1 else padding  # one number stands for rows and columns
    shape = (*x.shape[:2], *_windows(x, kernel, stride, both))
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def _gradients(mask: Sequence[bool], *like: Tensor | None) -> tuple[Tensor | None, ...]:
    """Make the gradients that `mask` marks, each of the shape of its tensor in `like`."""
    pairs = zip(like, mask, strict=True)
    return tuple(None if x is None or not needed else torch.empty_like(x) for x, needed in pairs)


def _attended(q: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    batch, heads, tokens = q.shape[:3]
    logsumexp = q.new_empty(batch, tokens, heads, dtype=torch.float32)
    return torch.empty_like(q), logsumexp.transpose(1, 2)  # in memory as PyTorch's kernel lays it out


def _normed(x: Tensor, shape: list[int], weight: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    rows = (*x.shape[: x.ndim - len(shape)], *(1 for _ in shape))
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    # Mean and deviation have the type of the weights, also in a group norm: float32 beside bfloat16 images.
    dtype = x.dtype if weight is None else weight.dtype
    return output, x.new_empty(rows, dtype=dtype), x.new_empty(rows, dtype=dtype)


def _reduced(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Tensor:
    reduced = {dim % x.ndim for dim in (dims or range(x.ndim))}
    axes = [dim for dim in range(x.ndim) if keepdim or dim not in reduced]
    return x.new_empty([1 if dim in reduced else x.shape[dim] for dim in axes])


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return tensors[0].new_empty(shape, dtype=dtype)


def _padded(x: Tensor, pad: Sequence[int], *_: Any) -> Tensor:
    shape = list(x.shape)
    for axis in range(len(pad) // 2):  # PyTorch lists the last axis first
        shape[-1 - axis] += pad[2 * axis] + pad[2 * axis + 1]
    return x.new_empty(shape)


def _copied(x: Tensor, *, dtype: torch.dtype | None = None, memory_format: Any = None, **_: Any) -> Tensor:
    return torch.empty_like(x, dtype=dtype, memory_format=memory_format or torch.preserve_format)


_aten = torch.ops.aten
SHAPES: dict[Any, ShapeRule] = {
    _aten.mm.default: lambda a, b: a.new_empty(len(a), b.shape[1]),
    _aten.addmm.default: lambda _, a, b, **__: a.new_empty(len(a), b.shape[1]),
    _aten.bmm.default: lambda a, b: a.new_empty(len(a), a.shape[1], b.shape[2]),
    _aten.convolution.default: lambda x, weight, _bias, stride, padding, *_: x.new_empty(
        len(x), len(weight), *_windows(x, weight.shape[2:], stride, padding)
    ),
    # The last argument of a backward pass says which gradients are needed.
    _aten.convolution_backward.default: lambda grad, x, weight, bias_shape, *rest: _gradients(
        rest[-1], x, weight, None if bias_shape is None else grad.new_empty(bias_shape)
    ),
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _attended,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: lambda _grad, q, k, v, *_, **__: (
        tuple(x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in (q, k, v))
    ),
    _aten.native_layer_norm.default: _normed,
    _aten.native_layer_norm_backward.default: lambda _, x, shape, mean, std, weight, bias, mask: _gradients(
        mask, x if x.is_contiguous() else x.new_empty(x.shape), weight, bias
    ),
    _aten.native_group_norm.default: lambda x, weight, _bias, batch, _channels, _pixels, groups, *_: (
        torch.empty_like(x),
        *(x.new_empty(batch, groups, dtype=weight.dtype) for _ in ("mean", "deviation")),
    ),
    # The bias has the weight's shape.
    _aten.native_group_norm_backward.default: lambda _, x, mean, std, weight, *rest: _gradients(
        rest[-1], x, weight, weight
    ),
    _aten._softmax.default: lambda x, *_: torch.empty_like(x),
    _aten._safe_softmax.default: lambda x, *_, **__: torch.empty_like(x),
    _aten._softmax_backward_data.default: lambda grad, *_: torch.empty_like(grad),
    _aten.sum.dim_IntList: _reduced,
    _aten.mean.dim: _reduced,
    _aten.amax.default: _reduced,
    _aten.linalg_vector_norm.default: lambda x, _, dims=None, keepdim=False, **__: _reduced(x, dims, keepdim),
    _aten.cat.default: _joined,
    _aten.stack.default: lambda tensors, dim=0: _joined([x.unsqueeze(dim) for x in tensors], dim),
    _aten.constant_pad_nd.default: _padded,
    _aten.max_pool2d_with_indices.default: _pooled,
    _aten.max_pool2d_with_indices_backward.default: lambda grad, x, *_: torch.empty_like(x),
    _aten.slice_backward.default: lambda grad, sizes, *_: grad.new_empty(sizes),
    _aten.select_backward.default: lambda grad, sizes, *_: grad.new_empty(sizes),
    _aten._to_copy.default: _copied,
    _aten.clone.default: _copied,
}
"""Functions that give the shape of an operation's result. An operation that is not listed here is computed,
which takes longer and gives the same shape."""


def _shaped(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Make an operation's result, without computing its numbers where nothing depends on them."""
    first = args[0] if args else None
    # Whole numbers are computed, since they are indices; uint8 numbers are pixels.
    has_values = isinstance(first, Tensor) and (first.is_floating_point() or first.dtype == torch.uint8)
    are_tensors = isinstance(first, list | tuple) and all(isinstance(x, Tensor) for x in first)
    if not (has_values or are_tensors):
        return func(*args, **kwargs)
    if (rule := SHAPES.get(func)) is not None:
        return rule(*args, **kwargs)
    if func._schema.is_mutable:  # an operation in place gives the tensor that it changes
        return first
    if torch.Tag.pointwise in func.tags:
        tensors = [argument for argument in args if isinstance(argument, Tensor)]
        # `broadcast_shapes` would import sympy.
        shape = torch.broadcast_tensors(*tensors)[0].shape  # type: ignore[no-untyped-call]
        # One number of each tensor is computed, for PyTorch's own rule of types.
        small = [a.new_empty((1,) * a.ndim) if isinstance(a, Tensor) else a for a in args]
        dtype = func(*small, **kwargs).dtype
        if (like := next((tensor for tensor in tensors if tensor.shape == shape), None)) is None:
            return tensors[0].new_empty(shape, dtype=dtype)
        return torch.empty_like(like, dtype=dtype)
    return func(*args, **kwargs)


MOST_OBSERVED = 8
"""The most images of the smaller of two observed batches. A way of computing may depend on their number:
normalisation is folded into the weights where the pixels outnumber the weights of the stem, 16 images for
ViT-B/32 at 224 pixels; observing 32 images there changes the estimate by less than 0.01 %."""


def _observe(
    config: ModelConfig,
    batch_size: int,
    compute: Compute,
    block: BlockFunction | None,
    *,
    training: bool,
    recompute: bool = False,
) -> Ledger:
    """Observe the passes of a model with two small batches, and give the ledger of the whole batch."""
    # Two images or more: a single one is contiguous in any order of the axes, so that copies which a batch
    # needs would not be made.
    batch = min(max(batch_size, 2), MOST_OBSERVED)
    try:
        model = build_empty(config)
        # PyTorch's `to_empty` imports sympy, which takes longer than all of this.
        memory = {name: torch.empty(tensor.shape) for name, tensor in model.state_dict().items()}
        model.load_state_dict(memory, assign=True)
        model.compute_buffers()
        # No kernels in C, which would read the numbers. PyTorch's GELU saves the same tensors, and `block`
        # takes the place of the block in C.
        mask = getattr(block, "keep_mask", _allocate_mask)
        fast.compute_as(model, replace(compute, gelu="pytorch", graph="eager"), None, block, mask)
        model.recompute = recompute
        ledger, larger = (_pass(model, count, compute, training) for count in (batch, batch + 1))
    except RuntimeError as error:
        raise VitkitError(
            f"The memory of this model cannot be measured ({str(error).splitlines()[0]}): choose smaller "
            "patches, images or layers."
        ) from error
    assert [span.born for span in ledger.spans] == [span.born for span in larger.spans]
    for span, other in zip(ledger.spans, larger.spans, strict=True):
        # One image more adds the bytes of each image; what is left of the smaller batch belongs to no image.
        span.bytes += (batch_size - batch) * (other.bytes - span.bytes)
    return ledger


def _allocate_mask(keys: Tensor, rate: float, like: Tensor) -> Tensor:
    """Allocate what `keep_mask` does, which takes images one by one, in as many pieces for any number."""
    images = torch.empty(like.shape, dtype=torch.bool)
    _hashes = [torch.empty(like[0].numel(), dtype=torch.int64) for _ in range(3)]
    return images.clone()


def _pass(model: ImageModel, count: int, compute: Compute, training: bool) -> Ledger:
    """Make the passes of a step, and note them in a ledger."""
    config = model.config
    images = torch.empty(count, config.in_channels, *config.image_size, dtype=torch.uint8)
    model.zero_grad()
    model.train(training)
    ledger = Ledger(model, images)
    with torch.set_grad_enabled(training), ledger:
        with torch.autocast("cpu", torch.bfloat16, enabled=compute.precision == "bfloat16"):
            logits = model(images)
            if training:
                # The cross-entropy to targets of one number a class, as in training by classification.
                rows = logits.flatten(0, -2)
                loss = F.cross_entropy(rows, torch.zeros_like(rows, dtype=torch.float32))
                del rows
        ledger.forward_end = ledger.time
        if training:
            del logits  # in training they are gone when the objective has returned
            loss.backward()  # type: ignore[no-untyped-call]
            del loss
    ledger.alive = {}  # what goes later counts as having stayed
    return ledger

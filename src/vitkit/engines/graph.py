"""Have engines compute a model: make the graph that they are handed, and compare its logits with PyTorch's.

The graph goes from uint8 images to logits, and computes nothing that nobody reads. A compiler of graphs does
not know that only the class token is read after the last block, nor that the normalisation of pixels can be
part of the patch embedding. Both are written into the graph here, so that it is smaller than other
libraries' graphs; and the rest is put in the form that OpenVINO fuses best. Attention as products and
softmax gained nothing there, nor did GELU as x * sigmoid(...) beside the fused tanh form.

Shapes: B images, T tokens, D = width, h = num_heads, d = D / h.
"""

import copy
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitkit.data.config import Preprocessing
from vitkit.engines import folder as engines
from vitkit.engines.int8 import quantize_onnx, save_onnx
from vitkit.engines.libraries import EnginePrecision, GraphEngine, import_package, refusing
from vitkit.errors import VitkitError
from vitkit.evaluation import refusal
from vitkit.evaluation.run_model import WithNovelty, output_function
from vitkit.models.config import PLAIN, Compute, ModelConfig, halve
from vitkit.models.fast import CENTRE, FOLDED_PIXELS, ROTARY, can_fold_pixels, compute_as
from vitkit.models.image_model import ImageModel
from vitkit.models.known_parts import ANY, Way
from vitkit.models.parts import MLP, Attention, Block, ConvStem
from vitkit.models.resnet import StdConv2d, ZeroPaddedMaxPool

SPLIT_ATTENTION = Way(ROTARY, {"norm": ANY, "qk_norm": ANY})
FLOAT32_TOLERANCE = 1e-4
"""Largest difference to PyTorch's logits in float32, as a fraction of their standard deviation: ten times the
largest that rounding was seen to make (7.7e-6, a hybrid), and less than any graph that computes something
else."""
FLOAT32_ROUNDING = 4 * 2.0**-23
"""Four units in the last place of the largest logit, for logits that hardly differ from one another."""
BFLOAT16_TOLERANCE = 0.1
"""Largest difference in bfloat16, whose numbers have three digits, as a fraction of the largest logit."""
COMPARED_IN_MEMORY = 4
"""Images of the comparison where a graph is made for one command, which should begin soon."""
MADE_UP = "images that are made up"


class SplitAttention(Attention):
    """Attention whose queries, keys and values come of three products in place of one.

    OpenVINO then fuses the transposition into heads with the attention; of one product with 3D outputs it
    copies them first.

    Args:
        attention: the attention whose weights it uses.
    """

    def __init__(self, attention: Attention) -> None:
        width = attention.out.in_features
        with torch.device("meta"):  # the weights come below, parts of those of `attention.qkv`
            super().__init__(width, attention.num_heads, rotary=attention.rotary)
            self.projections = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.qkv, self.out = attention.qkv, attention.out
        self.q_norm, self.k_norm = attention.q_norm, attention.k_norm
        weights, biases = self.qkv.weight.detach().chunk(3), self.qkv.bias.detach().chunk(3)
        for linear, weight, bias in zip(self.projections, weights, biases, strict=True):
            linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.num_heads, width // self.num_heads)
        q, k, v = (linear(x).reshape(shape).transpose(1, 2) for linear in self.projections)
        return q, k, v


def graph_of(model: ImageModel, precision: EnginePrecision = "float32") -> ImageModel:
    """Copy a model in the form that engines are handed; weights that stay as they are take no more memory.

    Args:
        model: with its weights.
        precision: the type that it will be computed in.

    Returns:
        A module from uint8 images `(B, C, H, W)` to logits `(B, K)`, in evaluation mode.
    """
    # `deepcopy` takes these tensors for copied already: the copy shares them.
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    gelu = engines.computed_gelu(model.config, precision)
    graph: Any = copy.deepcopy(model, shared).eval()
    # Pixels are folded below, once: `Compute.pixels` folds them at every call.
    compute_as(graph, Compute(last_block="class_token"))
    # A block that computes the class token alone reads the weights of `qkv` itself (`fast.attend_first`).
    shortened = getattr(graph, "shortened_block", lambda: None)()
    splits = SPLIT_ATTENTION.computes(model.config)
    for module in list(graph.modules()):
        if isinstance(module, Block) and splits and module is not shortened:
            if SPLIT_ATTENTION.knows(module.attention):
                module.attention = SplitAttention(module.attention)
        elif isinstance(module, MLP) and gelu is not None:
            module.gelu = gelu
        elif isinstance(module, StdConv2d):
            # Once, and not for every image: ONNX Runtime folds no normalisation of weights.
            module.weight = nn.Parameter(module.standardized().detach())
            module.standardization = "done"
    # The patch embedding reads pixels - 128 in place of (pixels - mean) / std: whole numbers from -128 to
    # 127, which bfloat16 and int8 hold exactly. Stems of several layers keep the normalisation: around an
    # image they see zeros, which are its mean.
    if FOLDED_PIXELS.computes(model.config) and can_fold_pixels(graph):
        stem = graph.stem
        # In float64, so that the folded weights are rounded once.
        weight = stem.weight.detach().double() / graph.pixel_std.double()
        bias = stem.bias.detach().double() + (weight * (CENTRE - graph.pixel_mean.double())).sum((1, 2, 3))
        stem.weight, stem.bias = nn.Parameter(weight.float()), nn.Parameter(bias.float())
        graph.pixel_mean = torch.full_like(graph.pixel_mean, CENTRE)
        graph.pixel_std = torch.ones_like(graph.pixel_std)
    return cast("ImageModel", graph)


def example_images(model: ImageModel, count: int = 2) -> Tensor:
    """Make images of the size of a model, `(count, C, H, W)` uint8, the same at every call.

    Two unless asked otherwise, because tracing takes a batch of one for a number that never changes.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (count, model.config.in_channels, *model.config.image_size)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def two_outputs(graph: ImageModel) -> nn.Module:
    """Give a graph its second output, the score of its `Novelty`; without one it is left as it is."""
    # In the graph alone once, by the name that keeps it out of quantisation.
    novelty, graph.novelty = graph.novelty, None
    return graph if novelty is None else WithNovelty(graph, novelty)


class UnmergedMaxPool(nn.Module):
    """`ZeroPaddedMaxPool` to the same bits, without a padding before the pooling.

    ONNX Runtime before 1.32, and other programs that simplify such graphs, merge the two nodes into a pooling
    that pads with minus infinity (microsoft/onnxruntime#18136, onnxsim/onnxsim#290). Here the zeros are taken
    into the maximum after the pooling, at those positions whose window reaches over the edge.

    Args:
        size: rows and columns of the map that is pooled.
    """

    edge: Tensor

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        nothing = torch.full((1, 1, *size), -math.inf)
        self.register_buffer("edge", ZeroPaddedMaxPool()(nothing), persistent=False)  # (1, 1, H / 2, W / 2)

    def forward(self, x: Tensor) -> Tensor:
        """Pool `(B, C, H, W)` to `(B, C, H / 2, W / 2)`, sizes rounded up."""
        return torch.maximum(F.max_pool2d(x, 3, 2, padding=1), self.edge)


def write_onnx(model: ImageModel, folder: Path, precision: EnginePrecision = "float32") -> None:
    """Have PyTorch write the files of a model's graph in the ONNX format, for any number of images."""
    graph: Any = graph_of(model, precision)
    if isinstance(getattr(graph, "root_pool", None), ZeroPaddedMaxPool):
        graph.root_pool = UnmergedMaxPool(halve(model.config.image_size))  # the root has a stride of 2
    outputs = two_outputs(graph)
    # The exporter logs that it does without torchvision, and which constants it folds.
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    with ExitStack() as silenced:
        silenced.enter_context(warnings.catch_warnings())
        silenced.enter_context(redirect_stdout(StringIO()))
        warnings.simplefilter("ignore")  # exporters warn of arguments that are meant as they are
        for logger in loggers:
            silenced.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        torch.onnx.export(
            outputs,
            (example_images(model),),
            folder / engines.FILES["onnxruntime"][0],
            input_names=["images"],
            output_names=["logits", "novelty"] if isinstance(outputs, WithNovelty) else ["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=True,  # one file of this format holds at most 2 GiB
            verbose=False,
        )


INSIDE = {"bilinear": ("linear", "bilinear_pillow"), "bicubic": ("cubic", "bicubic_pillow")}
"""Filters that engines compute as Pillow does: the modes of ONNX's Resize, and of OpenVINO's Interpolate."""


def refuse_inside(rule: Preprocessing) -> None:
    """Refuse a preprocessing that is not written into graphs.

    Raises:
        VitkitError: it puts borders around images, leaves their size, or has a filter that the engines lack.
    """
    has_borders = rule.resize in ("longest", "none") or (rule.resize != "stretch" and rule.crop_fraction > 1)
    if has_borders or rule.interpolation not in INSIDE:
        way = f"{rule.resize}, crop_fraction {rule.crop_fraction:g}, {rule.interpolation}"
        raise VitkitError(
            "A graph resizes images itself without borders (stretch, squash, crop, shortest; crop_fraction "
            f"at most 1), bilinear or bicubic; this model's are prepared otherwise ({way}). Leave --inside "
            "out, and prepare them outside."
        )


Value = Any
"""A value in a graph: its name in ONNX, a node in OpenVINO; or a number that is known when it is made."""
Operation = Callable[..., Value]
"""Adds an operation of ONNX by its name, on floats; Round is half to even."""


def _resized(sides: Sequence[Value], axis: Literal[0, 1], rule: Preprocessing, add: Operation) -> list[Value]:
    """Compute the side that an image's side is resized to, and where its middle begins, as `preprocess` does.
    An image of the model's own size is taken as one that was prepared outside.

    Args:
        sides: height and width of the image, as floats.
        axis: 0 for the height, 1 for the width.
        rule: as `refuse_inside` lets it pass.
        add: adds an operation.
    """
    cut = rule.image_size[axis]
    if rule.resize == "stretch":
        return [cut, 0]
    side, across = (rule.resized(0), rule.resized(1))[:: -1 if axis else 1]
    is_down = rule.resize == "crop" or rule.crop_offset == "down"
    resized: Value = float(side)
    if rule.resize != "squash":
        # As long as it is where the other side becomes what it must be: or else this one becomes that.
        whole = add("Div", add("Mul", sides[axis], float(across)), sides[1 - axis])
        rounding = "Floor" if rule.resize == "shortest" and side == across else "Round"
        resized = add("Max", add(rounding, whole), resized)
    spare = add("Div", add("Sub", resized, float(cut)), 2.0)
    equal = [add("Equal", *pair) for pair in zip(sides, map(float, rule.image_size), strict=True)]
    prepared = add("And", *equal)
    first = add("Floor" if is_down else "Round", spare)
    return [add("Where", prepared, float(cut), resized), add("Where", prepared, 0.0, first)]


def resize_inside_onnx(path: Path, rule: Preprocessing) -> None:
    """Have a graph in ONNX take images of any size, and resize them itself.

    Args:
        path: its file.
        rule: as `refuse_inside` lets it pass.
    """
    onnx = import_package("onnx")
    model, nodes = onnx.load(path), list[Any]()
    graph, kinds = model.graph, onnx.TensorProto

    def name_of(value: Value) -> str:
        if isinstance(value, str):
            return value
        name = f"inside/constant{len(graph.initializer)}"
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
        return name

    def add(operation: str, *inputs: Value, **options: Any) -> str:
        output = f"inside/{len(nodes)}"
        nodes.append(onnx.helper.make_node(operation, [*map(name_of, inputs)], [output], **options))
        return output

    def whole(value: Value) -> Value:
        return add("Cast", value, to=kinds.INT64) if isinstance(value, str) else value

    sides, image, cuts = list[str](), "images", rule.resize != "stretch"
    if cuts:
        shapes = [add("Shape", "images", start=axis, end=axis + 1) for axis in (2, 3)]
        sides = [add("Cast", shape, to=kinds.DOUBLE) for shape in shapes]
    options = {"mode": INSIDE[rule.interpolation][0], "antialias": int(rule.antialias)}
    if rule.antialias:
        options |= {"cubic_coeff_a": -0.5, "exclude_outside": 1}
    else:
        image = add("Cast", image, to=kinds.FLOAT)
    # The columns first, each time to whole levels with antialias: as Pillow does in most cases.
    for axis in (1, 0):
        size, first = map(whole, _resized(sides, axis, rule, add))
        image = add("Resize", image, "", "", size, axes=[2 + axis], **options)
        if cuts:
            image = add("Slice", image, first, add("Add", first, rule.image_size[axis]), 2 + axis)
    if not rule.antialias:
        image = add("Cast", add("Floor", add("Add", image, np.float32(0.5))), to=kinds.UINT8)
    for node in graph.node:
        node.input[:] = [image if name == "images" else name for name in node.input]
    shape = ["batch", rule.decode.channels, "height", "width"]
    for part, values in (
        (graph.input, [onnx.helper.make_tensor_value_info("images", kinds.UINT8, shape)]),
        (graph.node, [*nodes, *graph.node]),
    ):
        del part[:]
        part.extend(values)
    path.with_name(engines.FILES["onnxruntime"][1]).unlink()
    save_onnx(model, path)


def resize_inside_openvino(graph: Any, rule: Preprocessing) -> Any:
    """Make of a graph of OpenVINO another that takes images of any size, and resizes them itself."""
    openvino, ops = import_package("openvino"), import_package("openvino.opset13")
    names = {"Mul": "multiply", "Div": "divide", "Sub": "subtract", "Max": "maximum", "Floor": "floor"}
    names |= {"Equal": "equal", "And": "logical_and", "Where": "select"}

    def constant(value: Value, kind: Any) -> Value:
        return ops.constant(np.array([value], kind)) if isinstance(value, int | float) else value

    def add(operation: str, *inputs: Value) -> Value:
        floats = [constant(value, np.float32) for value in inputs]
        return ops.round(*floats) if operation == "Round" else getattr(ops, names[operation])(*floats)

    def whole(value: Value) -> Value:
        return constant(value, np.int64) if isinstance(value, int) else ops.convert(value, "i64")

    images = ops.parameter([-1, rule.decode.channels, -1, -1], np.uint8, name="images")
    shape, zero, step = ops.shape_of(images), ops.constant(0), ops.constant(np.array([1]))
    sides = [ops.convert(ops.gather(shape, ops.constant(np.array([axis])), zero), "f32") for axis in (2, 3)]
    values = ops.convert(images, "f32")
    mode = INSIDE[rule.interpolation][1] if rule.antialias else "linear_onnx"
    for axis in (1, 0):
        size, first = map(whole, _resized(sides, axis, rule, add))
        axes, last = ops.constant(np.array([2 + axis])), ops.add(first, whole(rule.image_size[axis]))
        values = ops.interpolate(values, size, mode, "sizes", cube_coeff=-0.5, axes=axes)
        values = ops.slice(values, first, last, step, axes)
        if rule.antialias:
            values = ops.clamp(ops.round(values, "half_away_from_zero"), 0.0, 255.0)
    pixels = ops.convert(values if rule.antialias else ops.round(values, "half_away_from_zero"), "u8")
    (parameter,) = graph.get_parameters()
    for target in parameter.output(0).get_target_inputs():
        target.replace_source_output(pixels.output(0))
    return openvino.Model(graph.get_results(), [images], "vitkit")


def convert(model: ImageModel, precision: EnginePrecision) -> Any:
    """Make OpenVINO's graph of a model, for any number of images: an `openvino.Model`.

    Args:
        model: with its weights, which stay float32 in the graph.
        precision: the type that it will be computed in.
    """
    openvino = import_package("openvino")
    shape = [-1, model.config.in_channels, *model.config.image_size]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks of shapes are traced as constants, on purpose
        graph = two_outputs(graph_of(model, precision))
        return openvino.convert_model(
            graph, example_input=example_images(model), input=[(shape, openvino.Type.u8)]
        )


TRIAL_IMAGES = 32
"""Images on which two ways of quantising a model are compared."""


def quantize(model: ImageModel, graph: Any, images: Sequence[NDArray[np.uint8]]) -> Any:
    """Have NNCF quantise the matrix products of a graph to int8: weights by output channel.

    NNCF can first move outliers of activations into the weights ("smoothing"). That helps some models and
    ruins others: with it a small model with a convolutional stem had an error of 44 % of the logits' standard
    deviation, without it 6 %. Both are tried on some images, and the graph nearer to float32 is taken.

    Args:
        model: the model that the graph was made of.
        graph: from `convert`; it is left as it is.
        images: `(1, C, H, W)` each, on which the ranges of the activations are measured.
    """
    some = images[:TRIAL_IMAGES]

    def logits(graph: Any, precision: EnginePrecision) -> NDArray[np.float64]:
        runner = engines.OpenVINORunner(graph, precision, torch.get_num_threads())
        return np.concatenate([runner(image) for image in some]).astype(np.float64)

    expected, errors = logits(graph, "float32"), dict[bool, float]()
    candidates = {smooth: quantize_once(model, graph, some, smooth) for smooth in (False, True)}
    for smooth, candidate in candidates.items():
        errors[smooth] = math.inf
        with suppress(RuntimeError):  # OpenVINO lacks registers to compile some graphs with smoothing
            errors[smooth] = float(np.square(logits(candidate, "int8") - expected).sum())
    smooth = errors[True] < errors[False]
    return candidates[smooth] if len(some) == len(images) else quantize_once(model, graph, images, smooth)


def quantize_once(model: ImageModel, graph: Any, images: Sequence[NDArray[np.uint8]], smooth: bool) -> Any:
    """Quantise as `quantize` does, with smoothing or without it."""
    nncf = import_package("nncf")
    ranges = import_package("nncf.quantization.range_estimator").RangeEstimatorParametersSet
    # An alpha below 0 turns smoothing off.
    no_smoothing = {"smooth_quant_alphas": nncf.AdvancedSmoothQuantParameters(matmul=-1)}
    convolutional = isinstance(getattr(model, "stem", None), ConvStem)
    # A distance is a difference of large squares: int8 has too few digits for it.
    ignored: dict[str, Any] = {"types": ["Convolution"]} if convolutional else {}
    if model.novelty is not None:
        ignored["patterns"] = [".*novelty.*"]
    with warnings.catch_warnings(), redirect_stdout(StringIO()):  # its progress bars are drawn on stdout
        warnings.simplefilter("ignore")
        return nncf.quantize(
            graph,
            nncf.Dataset(images),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(images),
            # Everything after a convolutional stem depends on it: with it in float, the error of the logits
            # was less than half.
            ignored_scope=nncf.IgnoredScope(**ignored) if ignored else None,
            # Histograms cut off outliers where that loses least; least and largest numbers keep them all,
            # and the error of the logits was three times as large.
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                activations_range_estimator_params=ranges.HISTOGRAM, **({} if smooth else no_smoothing)
            ),
        )


def refuse_model(engine: GraphEngine, config: ModelConfig) -> None:
    """Refuse a model that an engine has no graph for, before any work.

    Raises:
        VitkitError: the engine has none.
    """
    if engine == "onnxruntime" and getattr(config, "position", None) == "relative":
        raise VitkitError(
            "ONNX has no operation for the relative positions of this model. Take the engine openvino, or "
            "torch."
        )


def serve(
    model: ImageModel,
    engine: GraphEngine,
    precision: EnginePrecision,
    threads: int,
    into: Path | None = None,
) -> engines.EngineModel:
    """Have an engine compute a model in memory.

    Args:
        model: with weights, in the memory of the processor.
        engine, precision: as `refuse_precision` lets them pass; int8 is made by an export alone.
        threads: number of threads to compute with.
        into: an empty folder, in which the graph and its description are left.

    Raises:
        VitkitError: the engine cannot convert the model, or computes something else.
    """
    refuse_model(engine, model.config)
    with tempfile.TemporaryDirectory(prefix="vitkit-") as folder:
        place = into or (Path(folder) if engine == "onnxruntime" else None)
        runner = make_runner(model, engine, precision, threads, place)
    images = example_images(model, COMPARED_IN_MEMORY).numpy()
    agreement = compare(model, runner, images, MADE_UP)
    refuse_other_logits(agreement, engine, precision)
    if into is not None:
        engines.write_description(into, model, engine, precision, agreement, None)
    return engines.EngineModel(model.config, model.card, runner)


def make_runner(
    model: ImageModel,
    engine: GraphEngine,
    precision: EnginePrecision,
    threads: int,
    folder: Path | None,
    images: Sequence[NDArray[np.uint8]] = (),
    inside: Preprocessing | None = None,
) -> engines.Runner:
    """Make an engine's graph of a model and have it compiled.

    Args:
        model, engine, precision, threads: as for `serve`, and int8.
        folder: where the files of the graph are written; None: nowhere, which OpenVINO alone can.
        images: `(1, C, H, W)` each, which OpenVINO's int8 is calibrated on.
        inside: the rule by which the graph itself resizes images; None: it takes them in the model's size.

    Raises:
        VitkitError: the engine cannot convert the model.
    """
    with refusing(engine, "convert this model", "Take engine torch."):
        if engine == "openvino":
            graph = convert(model, precision)
            if precision == "int8":
                graph = quantize(model, graph, images)
            if inside is not None:
                graph = resize_inside_openvino(graph, inside)
            if folder is not None:  # with weights in float32 and not in float16
                path = folder / engines.FILES[engine][0]
                import_package("openvino").save_model(graph, path, compress_to_fp16=False)
            return engines.OpenVINORunner(graph, precision, threads)
        assert folder is not None
        write_onnx(model, folder, precision)
        if precision == "int8":
            quantize_onnx(folder / engines.FILES[engine][0])
        if inside is not None:
            resize_inside_onnx(folder / engines.FILES[engine][0], inside)
        return engines.OnnxRunner(folder, threads)


def compare(
    model: ImageModel,
    runner: engines.Runner,
    images: NDArray[np.uint8],
    named: str,
    answers: Callable[[NDArray[np.float32]], NDArray[np.int64]] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> engines.Agreement:
    """Compare an engine with the model that it was made of, computed by PyTorch in float32.

    Args:
        model: the model of the engine's graph.
        runner: the engine, which computes batches of 1, of 3 and of up to 32 other images.
        images: `(N, C, H, W)`.
        named: the images as a phrase: "test images of photos".
        answers: makes the answers `(N, A)` of logits: `Answering.answers`; None: they are not compared.
        progress: called with the number of images that are compared.

    Raises:
        VitkitError: logits of PyTorch are not finite, or the engine's are and cannot be answered.
    """
    compute_as(model, PLAIN)  # a fast way may lack what the graph lacks
    batches = [part for part in np.split(images, (1, 4, *range(36, len(images), 32))) if len(part)]
    outputs, expected = list[NDArray[np.float32]](), list[NDArray[np.float32]]()
    with output_function(model, torch.device("cpu"), "float32", novelty=True) as compute:
        for batch in batches:
            outputs.append(runner(batch))
            # One at a time: memory holds no more beside the activations of the largest models.
            expected += [compute(torch.from_numpy(image[None]))() for image in batch]
            progress(len(expected))
    logits, plain = np.concatenate(outputs), np.concatenate(expected)
    refusals = None
    if model.card.refusal is not None and logits.shape == plain.shape:
        share, own = refusal.choose_share(model.card.refusal, None), model.card.refusal.scores
        judged = [refusal.typicality(each[:, -1], own) <= share for each in (logits, plain)]
        refusals = int((judged[0] == judged[1]).sum())
        logits, plain = logits[:, :-1], plain[:, :-1]
    if not np.isfinite(plain).all() or (answers is not None and not np.isfinite(logits).all()):
        raise VitkitError(
            "Logits are not finite (NaN or infinite), so nothing can be compared: the weights overflow or "
            "are damaged."
        )
    same_shape = logits.shape == plain.shape
    apart = logits.astype(np.float64) - plain if same_shape else np.array(math.inf)
    pairs = [answers(each) for each in (logits, plain)] if answers is not None and same_shape else []
    spread, difference = float(plain.std(dtype=np.float64)), float(np.sqrt(np.square(apart).mean()))
    # Logits that are all alike, as a head of zeros gives them, have no spread to compare with.
    error = difference / spread if spread else (math.inf if difference else 0.0)
    return engines.Agreement(
        f"{len(images):,} {named}",
        len(images),
        tuple(dict.fromkeys(map(len, batches))),
        float(np.abs(apart).max()),
        spread,
        error,
        float(np.abs(plain).max()),
        pairs[1].size if pairs else 0,
        int((pairs[0] == pairs[1]).sum()) if pairs else 0,
        refusals,
    )


def refuse_other_logits(
    agreement: engines.Agreement, engine: GraphEngine, precision: EnginePrecision
) -> None:
    """Refuse an engine that computes something else than the model it was made of.

    Raises:
        VitkitError: logits are further apart than `FLOAT32_TOLERANCE` or `BFLOAT16_TOLERANCE` allows.
    """
    largest = agreement.largest
    allowed = FLOAT32_TOLERANCE * agreement.spread + FLOAT32_ROUNDING * largest
    if precision != "float32":
        allowed = BFLOAT16_TOLERANCE * largest
    if not agreement.difference <= allowed:  # written so that logits that are not a number do not pass
        raise VitkitError(
            f"{engine} computes other logits of this model than PyTorch does, so its answers are not the "
            f"model's: {agreement}, where logits of up to {largest:.2g} may differ by {allowed:.1e}. Take "
            "engine torch."
        )

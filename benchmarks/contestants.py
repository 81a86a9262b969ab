"""Other libraries' models of the same sizes as vitkit's, as contestants of `vitkit.jobs.bench.compare`.

Peers compute with exact GELU, as their users do, and with both forms of attention, of which the faster one
counts. All ways of a library share one model.
"""

import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor, nn

from vitkit.engines.graph import serve
from vitkit.engines.libraries import EXTRAS, GraphEngine
from vitkit.errors import VitkitError
from vitkit.jobs.bench import Contestant, TorchPrecision
from vitkit.jobs.convert import import_library
from vitkit.models.build import build_model
from vitkit.models.config import ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig
from vitkit.runs.timing import BenchPhase

Logits: TypeAlias = Callable[[Tensor], Any]
"""Normalised images `(B, 3, H, W)` to logits `(B, K)`."""
Precisions: TypeAlias = tuple[TorchPrecision, ...]


def timm_contestants(config: ViTConfig, images: Tensor, precisions: Precisions) -> Iterator[Contestant]:
    """Give timm's own VisionTransformer, or with rotary positions its Eva, with a configuration's sizes."""
    import_library("timm")
    sizes = {
        "img_size": config.image_size,
        "patch_size": config.patch_size,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": config.mlp_dim / config.width,
        "num_classes": config.num_classes,
        "init_values": config.layer_scale,
        "drop_path_rate": config.drop_path,
        "pos_drop_rate": config.dropout,
        "proj_drop_rate": config.dropout,
    }
    if config.rotary is None:
        model: Any = import_module("timm.models.vision_transformer").VisionTransformer(**sizes)
    else:
        rotary = {"use_rot_pos_emb": True, "rope_type": "dinov3", "use_abs_pos_emb": False}
        model = import_module("timm.models.eva").Eva(global_pool="token", **sizes, **rotary)
    model.to(images.device)
    for precision, attention in itertools.product(precisions, ("fused", "explicit")):

        def prepare(fused: bool = attention == "fused") -> None:
            for block in model.blocks:
                block.attn.fused_attn = fused

        yield Contestant(f"timm {precision} {attention}", "timm", precision, model, model, prepare)


def huggingface_contestants(
    config: ViTConfig, images: Tensor, precisions: Precisions
) -> Iterator[Contestant]:
    """Give transformers' ViT with the sizes of a configuration."""
    transformers = import_library("transformers")
    sizes = transformers.ViTConfig(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.num_heads,
        intermediate_size=config.mlp_dim,
        num_labels=config.num_classes,
        hidden_dropout_prob=config.dropout,
    )
    model: Any = transformers.ViTForImageClassification(sizes).to(images.device)

    def logits(images: Tensor) -> Any:
        return model(pixel_values=images).logits

    for precision, attention in itertools.product(precisions, ("sdpa", "eager")):
        prepare = partial(model.set_attn_implementation, attention)
        name = f"transformers {precision} {attention}"
        yield Contestant(name, "transformers", precision, model, logits, prepare)


def vit_pytorch_contestants(
    config: ViTConfig, images: Tensor, precisions: Precisions
) -> Iterator[Contestant]:
    """Give vit-pytorch's ViT with the sizes of a configuration."""
    model: nn.Module = import_module("vit_pytorch.vit").ViT(
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        dim=config.width,
        depth=config.depth,
        heads=config.num_heads,
        dim_head=config.head_dim,
        mlp_dim=config.mlp_dim,
        dropout=config.dropout,
        emb_dropout=config.dropout,
    )
    model.to(images.device)
    for precision in precisions:
        yield Contestant(f"vit-pytorch {precision}", "vit-pytorch", precision, model, model)


def graph_to_export(config: ViTConfig) -> ImageModel:
    """Make our plain model, with a head that is not all zeros, for an engine's logits to be compared."""
    model = build_model(config).eval()
    assert isinstance(model.head, nn.Linear)
    nn.init.normal_(model.head.weight, std=0.02)
    return model


def _require_same(model: nn.Module, logits: Callable[[Tensor], Any], images: Tensor) -> None:
    """Refuse an engine that computes other logits than the model it was made of.

    Raises:
        VitkitError: the logits differ by more than bfloat16 does, two percent of the largest.
    """
    with torch.inference_mode():
        expected = model(images)
    result = torch.from_numpy(logits(images))
    if result.shape != expected.shape or (result - expected).abs().max() > 0.02 * expected.abs().max():
        raise VitkitError("it computes other logits than the model that it was given")


def openvino_logits(model: ImageModel, images: Tensor, precision: TorchPrecision) -> Logits:
    """Compile our plain graph by OpenVINO, for batches of this size."""
    openvino = import_module("openvino")
    graph = openvino.convert_model(model, example_input=images, input=list(images.shape))
    hints = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = openvino.Core().compile_model(graph, "CPU", hints).create_infer_request()
    return lambda images: request.infer([images.numpy()], share_inputs=True)[0]


def onnxruntime_logits(model: ImageModel, images: Tensor, precision: TorchPrecision) -> Logits:
    """Load our plain graph into ONNX Runtime, for batches of this size."""
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="vitkit-") as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, (images,), path, verbose=False)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images.numpy()})[0]


def served_logits(
    engine: GraphEngine, model: ImageModel, images: Tensor, precision: TorchPrecision
) -> Logits:
    """Compile vitkit's own graph by an engine, with uint8 images, as `vitkit.Predictor` has it."""
    served = serve(model, engine, precision, torch.get_num_threads())
    shown = (images * 64 + 128).clamp(0, 255).to(torch.uint8).numpy()
    served(shown), served(shown)  # the second batch of a size is compiled for it
    return lambda images: served(shown)


def engine_contestants(
    library: str,
    make_logits: Callable[[ImageModel, Tensor, TorchPrecision], Logits],
    config: ViTConfig,
    images: Tensor,
    precisions: Precisions,
) -> Iterator[Contestant]:
    """Give an engine on a processor; ONNX Runtime computes in float32 alone."""
    if images.device.type != "cpu":
        return
    model = graph_to_export(config)
    for precision in precisions:
        if precision != "float32" and "onnxruntime" in library:
            continue
        logits = make_logits(model, images, precision)
        if not library.startswith("vitkit"):  # whose graph has other images
            _require_same(model, logits, images)
        yield Contestant(f"{library} {precision}", library, precision, None, logits)


MakePeer = Callable[[ViTConfig, Tensor, Precisions], Iterator[Contestant]]
PEERS: dict[str, tuple[MakePeer, tuple[str, ...]]] = {
    "timm": (timm_contestants, ("timm",)),
    "transformers": (huggingface_contestants, ("transformers",)),
    "vit-pytorch": (vit_pytorch_contestants, ("vit_pytorch",)),
    "openvino": (partial(engine_contestants, "openvino", openvino_logits), ("openvino",)),
    "onnxruntime": (
        partial(engine_contestants, "onnxruntime", onnxruntime_logits),
        ("onnxruntime", "onnx", "onnxscript"),
    ),
    **{
        f"vitkit-{engine}": (
            partial(engine_contestants, f"vitkit {engine}", partial(served_logits, engine)),
            EXTRAS[engine],
        )
        for engine in get_args(GraphEngine)
    },
}
"""Libraries, and vitkit's own engines: the function that makes their contestants, and its packages."""
TRAINED = ("timm", "transformers", "vit-pytorch")
"""Those that can be trained, which engines cannot."""


def installed_peers() -> tuple[list[str], list[str]]:
    """Return the peers that are installed and those that are not, without importing any."""
    there = [name for name, (_, packages) in PEERS.items() if all(find_spec(package) for package in packages)]
    return there, [name for name in PEERS if name not in there]


def peer_contestants(
    name: str, config: ModelConfig, images: Tensor, phase: BenchPhase, precisions: tuple[TorchPrecision, ...]
) -> list[Contestant]:
    """Give the contestants of a peer, each of which has computed logits once.

    Args:
        name: the library's.
        config: the architecture; only a plain ViT with class token and head has peers.
        images: `(B, C, H, W)`, normalised, of the batch that is timed.
        phase: inference or training; engines cannot be trained.
        precisions: the precisions.

    Raises:
        VitkitError: the library has no such model, or its installation does not work.
    """
    vit: Any = config  # a configuration with tokens is a ViT or a hybrid
    if config.num_tokens is None or vit.backbone or vit.pool != "token" or not config.num_classes:
        raise VitkitError(f"{name} is left out: it is compared on plain ViTs with class token and head.")
    if name != "timm" and (vit.rotary or vit.drop_path or vit.layer_scale is not None):
        raise VitkitError(f"{name} is left out: it has no such blocks.")
    try:
        with warnings.catch_warnings():  # exporters warn of options that are meant
            warnings.simplefilter("ignore")
            takes_part = phase == "inference" or name in TRAINED
            contestants = list(PEERS[name][0](vit, images, precisions)) if takes_part else []
            for contestant in contestants:
                contestant.prepare()
                with torch.inference_mode():
                    contestant.logits(images[:1] if contestant.model else images)
    except Exception as error:  # a broken installation, or a library that changed, may raise anything
        reason = " ".join(str(error).split())[:200]
        raise VitkitError(f"{name} is left out: {type(error).__name__}: {reason}") from error
    return contestants

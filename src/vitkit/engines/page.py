"""The page that is the model: a single HTML file that answers in a browser, with no server and no request.

It holds the graph of a bundle, ONNX Runtime Web in WebAssembly (with WebGPU too where a page is to try it),
the golden set, and scripts that decode and resize as vitkit does (`web/`). The file is UTF-16: a character
then carries 15 bits of what is compressed, where base64 takes a third more. The mark at its beginning says so
to every browser, whatever a server says.
"""

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from vitkit._version import __version__
from vitkit.config import to_json
from vitkit.data.config import Preprocessing
from vitkit.engines.check import DECODING
from vitkit.engines.folder import FILES, EngineRecord, read_description_of
from vitkit.engines.golden import Golden, read_golden
from vitkit.engines.libraries import import_package
from vitkit.errors import VitkitError
from vitkit.evaluation.levels import levels_of
from vitkit.evaluation.refusal import TIE, choose_share
from vitkit.models.config import ModelConfig
from vitkit.text import format_bytes, format_size, join_names
from vitkit.weights.model_card import fit_preprocessing

WEB = files("vitkit.engines") / "web"
"""The scripts of the page, and the runtime, which `scripts/web-runtime` makes of its npm package."""
BITS, FIRST = 15, 0x4000
"""Bits that a character carries, and the character of zero: from here on 2**15 characters are letters, none
of which a browser, an editor or a server changes."""
MOST_BYTES = 500_000_000
"""Bytes of a compressed graph: a browser holds the text and the weights in memory, and has some 4 GB."""
CLASSES_SHOWN = 6
"""Names of classes at the head of the page."""
TYPES = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp", "gif": "gif", "bmp": "bmp"}
"""The formats of golden images that every browser decodes, by their endings."""


def write_page(bundle: Path, out: Path, title: str, webgpu: bool = False) -> EngineRecord:
    """Write the page of a bundle, and return the bundle's record.

    Args:
        bundle: a folder of `vitkit export` in the format onnx.
        out: the file.
        title: of the page.
        webgpu: whether the page tries WebGPU first, and uses it where the golden set agrees.

    Raises:
        VitkitError: the bundle is damaged or of another engine; or no browser can prepare images as the model
            expects them, or hold the model.
    """
    record, golden = read_description_of(bundle), read_golden(bundle)
    config, card = record.described
    if record.inside:
        raise VitkitError(
            f"The graph of {bundle} resizes images itself, and so does a page: export the model without "
            "--inside."
        )
    if record.engine != "onnxruntime":
        raise VitkitError(
            f"{bundle} is a graph of {record.engine}, and a browser computes ONNX: export the model with "
            "--format onnx, or give the run itself."
        )
    refuse_page(fit_preprocessing(card.preprocessing, config))
    graph = gzip.compress(make_graph(bundle / FILES["onnxruntime"][0], config), 9)
    if len(graph) > MOST_BYTES:
        raise VitkitError(
            f"The compressed model has {format_bytes(len(graph))}, and a page at most "
            f"{format_bytes(MOST_BYTES)}: take int8, a smaller model, or the bundle itself."
        )
    packed, images = pack_golden(golden)
    description = describe_page(record, golden, images) | {"providers": ["webgpu"] * webgpu + ["wasm"]}
    notices = gzip.compress((WEB / "LICENCES.txt").read_bytes(), 9)
    names = ("runtime", "wasm", "gpu-runtime", "gpu-wasm") if webgpu else ("runtime", "wasm")
    runtime = {name: (WEB / f"{name}.gz").read_bytes() for name in names}
    blocks = runtime | {"model": graph, "golden": gzip.compress(packed, 9), "licences": notices}
    text = render(title, record, description, blocks)
    out.write_bytes(("\ufeff" + text).encode("utf-16-le"))
    return record


def refuse_page(rule: Preprocessing) -> None:
    """Refuse a model whose images a browser cannot prepare, by its preprocessing.

    Raises:
        VitkitError: it takes other images than grey ones and RGB, or JPEGs that are decoded smaller.
    """
    if rule.decode.channels not in (1, 3):
        raise VitkitError(
            f"A page takes photos, and this model images of {rule.decode.channels} channels: expected 1 or "
            "3. Export a bundle, without --to page."
        )
    if rule.decode.jpeg_side is not None:
        raise VitkitError(
            f"The model reads JPEGs at a smaller scale (jpeg_side = {rule.decode.jpeg_side}), which no "
            "browser does. Export a bundle, without --to page, or train with jpeg_side left out."
        )


def make_graph(path: Path, config: ModelConfig) -> bytes:
    """Make one file of a bundle's graph, with attention as another output where the model has it.

    The output `attention` is `(B, N)`, what the last layer's attention pays to each patch, averaged over
    heads: that of the class token or of the pooling's query, else the mean over all patches.
    """
    onnx = import_package("onnx")
    model = onnx.load(str(path))
    if (grid := attention_grid(config)) is not None:
        _add_attention(onnx, model, config, math.prod(grid))
    del model.graph.value_info[:]
    for node in model.graph.node:  # what the exporter notes of PyTorch's code: 0.6 MB
        node.doc_string = ""
        del node.metadata_props[:]
    return bytes(model.SerializeToString())


def attention_grid(config: ModelConfig) -> tuple[int, int] | None:
    """Return rows and columns of the patches with attention between them to look at; None without any."""
    grid: tuple[int, int] = getattr(config, "grid", (1, 1))
    return grid if config.attention == "full" and math.prod(grid) > 1 else None


def _add_attention(onnx: Any, model: Any, config: ModelConfig, patches: int) -> None:
    """Add the output to a graph, of the last softmax in it: (B, h, queries, T), or (B, h, T) of one query."""
    weights = next(node.output[0] for node in reversed(model.graph.node) if node.op_type == "Softmax")
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    axes = next(len(value.type.tensor_type.shape.dim) for value in inferred if value.name == weights)
    prefix: int = getattr(config, "prefix_tokens", 0)

    def add(operation: str, value: str, name: str, **numbers: int) -> str:
        names = [f"{name}/{key}" for key in numbers]
        for key, number in zip(names, numbers.values(), strict=True):
            model.graph.initializer.append(
                onnx.helper.make_tensor(key, onnx.TensorProto.INT64, [1], [number])
            )
        keeping = {"keepdims": 0} if operation == "ReduceMean" else {}
        model.graph.node.append(onnx.helper.make_node(operation, [value, *names], [name], **keeping))
        return name

    mean = add("ReduceMean", weights, "attention/heads", axis=1)
    if axes == 4:
        # The class token, or a query of the pooling, stands first; without either all patches are read.
        single = getattr(config, "pool", "") in ("token", "token+mean", "map")
        end = 1 if single else np.iinfo(np.int64).max
        queries = add("Slice", mean, "attention/queries", start=0 if single else prefix, end=end, axis=1)
        mean = add("ReduceMean", queries, "attention/query", axis=1)
    add("Slice", mean, "attention", start=prefix, end=np.iinfo(np.int64).max, axis=1)
    shape = ["batch", patches]
    model.graph.output.append(onnx.helper.make_tensor_value_info("attention", onnx.TensorProto.FLOAT, shape))


def pack_golden(golden: Golden) -> tuple[bytes, list[dict[str, Any]]]:
    """Join the images of a golden set: each file, its pixels as differences to the left, and its logits.

    Returns:
        The bytes, and the name, type, length and refusal of each image.

    Raises:
        VitkitError: a browser does not decode an image.
    """
    parts, images = list[bytes](), list[dict[str, Any]]()
    for number, file in enumerate(golden.files):
        if (kind := TYPES.get(file.suffix[1:].lower())) is None:
            raise VitkitError(
                f"{file.name} is no file that browsers decode: give a golden set of JPEG and PNG files with "
                "--golden."
            )
        data, pixels = file.read_bytes(), golden.pixels[number]
        # Neighbours are alike: their differences compress to two thirds.
        left = np.pad(pixels, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        parts += [data, (pixels - left).tobytes(), golden.logits[number].astype("<f4").tobytes()]
        refused = None if golden.refused is None else bool(golden.refused[number])
        images.append({"name": file.name, "type": f"image/{kind}", "bytes": len(data), "refused": refused})
    return b"".join(parts), images


def describe_page(
    record: EngineRecord, golden: Golden, images: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Describe a model for the scripts of its page: all that an answer depends on beside the graph."""
    config, card = record.described
    count = config.num_classes
    refusal = levels = None
    if card.refusal is not None:
        refusal = {"scores": card.refusal.scores, "share": choose_share(card.refusal, None), "tie": TIE}
    if card.levels is not None:
        both = zip(levels_of(card.class_names), card.levels.thresholds, strict=True)
        levels = [
            {
                "names": level.names,
                "groups": level.group_of.tolist(),
                "above": level.above.tolist(),
                "threshold": threshold,
            }
            for level, threshold in both
        ]
    # The order of Pillow's two passes is that of the machine that made the golden set.
    pillow = [*map(int, PIL.__version__.split(".")[:2])]
    return {
        "classes": card.class_names or [f"class {number}" for number in range(count)],
        "several": golden.answers.ndim == 2,
        "loss": card.loss,
        "refusal": refusal,
        "levels": levels,
        "rule": {**to_json(fit_preprocessing(card.preprocessing, config)), "pillow": pillow},
        "grid": attention_grid(config),
        "golden": {
            "decoding": DECODING,
            "allowed": golden.allowed,
            "tie": golden.tie,
            "images": images,
        },
    }


def render(
    title: str, record: EngineRecord, description: Mapping[str, Any], blocks: Mapping[str, bytes]
) -> str:
    """Fill the template of the page."""
    config, card = record.described
    names, script, style = description["classes"], _read("page.js"), _read("page.css")
    kind = "labels" if description["several"] else "classes"
    facts = {
        "model": card.name or "of no name",
        kind: f"{len(names):,}",
        "input": f"{format_size(config.image_size)} pixels",
        "precision": record.precision,
        "licence": str(card.origin.get("licence", "not known")),
        "runtime": f"ONNX Runtime Web {json.loads(_read('runtime.json'))['version']}",
        "made by": f"vitkit {__version__}",
    }
    about = f"Names what is in a photo, by {len(names):,} {kind}: {join_names(names, CLASSES_SHOWN)}."
    terms = "".join(
        f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in facts.items()
    )
    # No "<" in the JSON: a class may be called </script>.
    data = json.dumps(description, separators=(",", ":")).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src {_digest(script)} blob: 'wasm-unsafe-eval'; worker-src blob:; "
        f"style-src {_digest(style)}; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    texts = {
        "policy": policy,
        "title": html.escape(title),
        "about": html.escape(about),
        "style": style,
        "facts": terms,
        "page": data,
        "worker": "".join(map(_read, ("preprocess.js", "answers.js", "worker.js"))),
        "script": script,
        "blocks": "\n".join(
            f'<script id="block-{name}" type="text/plain">{encode(block)}</script>'
            for name, block in blocks.items()
        ),
    }
    parts = _read("page.html").split("{{")
    filled = (texts[name] + rest for name, _, rest in (part.partition("}}") for part in parts[1:]))
    return parts[0] + "".join(filled)


def encode(data: bytes) -> str:
    """Write bytes as letters of 15 bits each, behind their length in four bytes."""
    # 15 bytes make 8 letters.
    whole = len(data).to_bytes(4, "big") + data
    rows = np.frombuffer(whole + bytes(-len(whole) % BITS), np.uint8).reshape(-1, BITS)
    powers = 1 << np.arange(BITS - 1, -1, -1)
    letters = np.empty((len(rows), 8), "<u2")
    for start in range(0, len(rows), 1 << 16):  # bits take eight times the memory
        bits = np.unpackbits(rows[start : start + (1 << 16)], axis=1).reshape(-1, 8, BITS)
        letters[start : start + (1 << 16)] = bits @ powers + FIRST
    return letters.tobytes().decode("utf-16-le")


def _digest(text: str) -> str:
    """Write the source of a policy that permits this very text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")

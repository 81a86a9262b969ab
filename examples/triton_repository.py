"""A bundle of `vitkit export` as a model repository of NVIDIA Triton: the graph, and config.pbtxt beside it.

    python examples/triton_repository.py mine-onnx repository
    docker run --rm -p 8000:8000 -v $PWD/repository:/models nvcr.io/nvidia/tritonserver:26.08-py3 \
        tritonserver --model-repository=/models

It needs vitkit and no engine, and a bundle of `--format onnx`: the outputs of OpenVINO's graphs have no
names. Triton answers with logits, by the Open Inference Protocol, as `vitkit serve` does under /v2; clients
decode and preprocess the photos.
"""

import shutil
import sys
from pathlib import Path

from vitkit.engines.folder import FILES, read_description_of
from vitkit.errors import VitkitError

MOST_IMAGES, DELAY_MICROSECONDS, QUEUE = 32, 5000, 64
"""Images of a batch, how long the first waits for others, and images that wait before more are refused."""


def write_repository(bundle: Path, repository: Path) -> Path:
    """Write a repository with one model, which has the name of the bundle; return its configuration.

    Raises:
        VitkitError: the bundle is damaged, or has no graph of ONNX.
        FileExistsError: the repository has a model of this name.
    """
    record = read_description_of(bundle)
    if record.engine != "onnxruntime":
        raise VitkitError(f"{bundle} has a graph of {record.engine}: export the model with --format onnx.")
    config, card = record.described
    files = FILES[record.engine]
    folder = repository / bundle.resolve().name
    (folder / "1").mkdir(parents=True)
    for name in files:
        shutil.copyfile(bundle / name, folder / "1" / name)
    sizes = ", ".join(map(str, (config.in_channels, *config.image_size)))
    # Triton's dims leave out the images; a score is a single number for each.
    outputs = {"logits": config.num_classes} | ({} if card.refusal is None else {"novelty": 1})
    written = [
        f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ {size} ]'
        + (" reshape: { shape: [ ] } }" if name == "novelty" else " }")
        for name, size in outputs.items()
    ]
    path = folder / "config.pbtxt"
    path.write_text(
        f"""name: "{folder.name}"
backend: "{record.engine}"
default_model_filename: "{files[0]}"
max_batch_size: {MOST_IMAGES}
input [ {{ name: "images" data_type: TYPE_UINT8 dims: [ {sizes} ] }} ]
output [ {", ".join(written)} ]
dynamic_batching {{
  max_queue_delay_microseconds: {DELAY_MICROSECONDS}
  default_queue_policy {{ max_queue_size: {QUEUE} }}
}}
"""
    )
    return path


if __name__ == "__main__":
    print(write_repository(Path(sys.argv[1]), Path(sys.argv[2])))

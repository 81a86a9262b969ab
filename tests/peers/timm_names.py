"""The models that `vitkit.create_model` makes of timm's names, beside timm's own.

    python -m tests.peers.timm_names        (inside the environment of scripts/test-peers)

Every default must be the weights that timm takes by default, and the numbers of
`tests/fixtures/q_timm_vit_tiny.npz`, which the ordinary tests compare with, those of timm: `--write` writes
them. `tests.peers.timm_architectures` compares the configurations. Exits with 1 where something differs.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from tests.peers.fixed_weights import ARCHITECTURE, NUMBERS, fixed_images, fixed_tensor
from vitkit.jobs.convert import import_library
from vitkit.weights.create import DEFAULT_TAGS, parse_timm_name


def unlike_defaults(timm: Any) -> list[str]:
    """Name the architectures whose default weights or image size are not timm's."""
    unlike = []
    for name in timm.list_models():
        parsed = parse_timm_name(name)
        if parsed is not None:
            theirs = timm.models.get_pretrained_cfg(name)
            tag = theirs.tag if theirs.has_weights else ""
            size = parsed.side if name.startswith("resnetv2") else theirs.input_size[-1]
            if (parsed.tag, parsed.side) != (tag, size):
                unlike.append(f"{name}: {parsed} is not {tag} at {size}")
    unlike += [f"{name} is no name of timm" for name in DEFAULT_TAGS if name not in timm.list_models()]
    return unlike


def numbers(timm: Any) -> dict[str, NDArray[np.float32]]:
    """Compute what timm makes of fixed weights and images: logits, and the features of its model of one
    channel, which it makes of weights for three."""
    plain = timm.create_model(ARCHITECTURE, num_classes=10)
    state = {name: fixed_tensor(name, tuple(tensor.shape)) for name, tensor in plain.state_dict().items()}
    plain.load_state_dict(state)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        file = Path(folder) / "model.safetensors"
        save_file(state, file)
        grey = timm.create_model(
            ARCHITECTURE,
            pretrained=True,
            in_chans=1,
            num_classes=0,
            pretrained_cfg_overlay={"file": str(file), "num_classes": 10},
        )
        return {
            "logits": plain.eval()(fixed_images(3))[0].numpy(),
            "features of one channel": grey.eval()(fixed_images(1))[0].numpy(),
        }


def main() -> int:
    torch.set_num_threads(1)
    timm = import_library("timm")
    computed = numbers(timm)
    if "--write" in sys.argv:
        np.savez_compressed(NUMBERS, **computed)  # type: ignore[arg-type]
    shipped = np.load(NUMBERS)
    unlike = unlike_defaults(timm)
    for name, values in computed.items():
        difference = float(np.abs(values - shipped[name]).max())
        print(f"{ARCHITECTURE}, {name}: timm is {difference:.1e} from the numbers that are shipped")
        unlike += [f"{name}: {difference:.1e}"] if difference > 1e-5 else []
    print(*unlike or ["all names of timm give timm's weights and sizes"], sep="\n")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())

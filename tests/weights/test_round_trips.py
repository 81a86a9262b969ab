"""load -> save -> load gives the same bits, for every model of the zoo in every layout that carries it."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

from tests.helpers.random_models import random_model, same_bits
from vitkit import load_model
from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.measure import parameters
from vitkit.models.zoo import NAMES, ModelConfig, model_config
from vitkit.weights.create import create_model
from vitkit.weights.format_names import Format
from vitkit.weights.loading import save_model
from vitkit.weights.table import find_format

FORMATS: tuple[Format, ...] = get_args(Format)
LARGEST = 700_000_000
"""Parameters of the largest model that is tried in full: two of them are in memory."""


def drawn(config: ModelConfig) -> ImageModel:
    """A model with every number drawn, the zeros of new heads and norms too."""
    with torch.device("meta"):
        model = build_model(config)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.1, 0.1, generator=generator)
    model.compute_buffers()
    return model.eval()


def check(model: ImageModel, format: Format, folder: Path) -> None:
    """The first file may say less than the model; from then on nothing changes."""
    heads = getattr(model.config, "num_heads", None)
    size = model.config.image_size
    first = load_model(save_model(model, folder / "first", format), image_size=size, num_heads=heads)
    second = load_model(save_model(first, folder / "second", format), image_size=size, num_heads=heads)
    assert second.config == first.config and same_bits(second, first)
    # big_vision adds the class token's position to it, once.
    assert format == "big_vision" or same_bits(first, model)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "Ti" in name else pytest.mark.slow) for name in NAMES]
)
def test_every_model_in_every_layout(name: str, tmp_path: Path) -> None:
    config = model_config(name)
    if parameters(config) > LARGEST:
        pytest.skip(f"more than {LARGEST:,} parameters")
    model = drawn(config)
    for format in FORMATS:
        if not find_format(format).unsupported(config):
            check(model, format, tmp_path / format)
            for path in sorted(tmp_path.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()


CHILD = """
import sys
import torch
from vitkit import load_model

def highest():  # bytes that were ever resident
    return 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line)

before = highest()
model = load_model(sys.argv[1])
sum(float(parameter.sum()) for parameter in model.parameters())  # what is mapped is really read
print(highest() - before, "torch._dynamo" in sys.modules)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("format", ["vitkit", "official"])
def test_loading_holds_the_weights_once_and_imports_no_compiler(format: Format, tmp_path: Path) -> None:
    model = create_model("ViT-512x8x8/16")
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    weights = 4 * parameters(model.config)
    path = save_model(model, tmp_path / "model", format)
    command = [sys.executable, "-c", CHILD, str(path)]
    memory, compiler = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert weights > 100e6  # enough to be told from what else a process does
    assert int(memory) < 1.6 * weights
    assert compiler == "False"


# Other libraries beside a torchvision that does not load; stand-ins take the place of all of them

TORCHVISION = """
import torch

try:
    torch.ops.torchvision.nms.default
    torch.ops.torchvision.qnms.default
except AttributeError:
    raise RuntimeError("operator torchvision::nms does not exist") from None
"""

TRANSFORMERS = '''
"""As release 5: nothing of torchvision until a model is asked for, then another exception than its own."""
from types import SimpleNamespace


class AutoModelForImageClassification:
    @staticmethod
    def from_pretrained(folder):
        try:
            import torchvision
        except RuntimeError as error:
            raise ModuleNotFoundError("Could not import module 'ViTForImageClassification'") from error
        import vitkit

        model = vitkit.load_model(folder)
        return SimpleNamespace(eval=lambda: lambda images: SimpleNamespace(logits=model(images)))
'''

TIMM = '''
"""Asks for torchvision when it is imported."""
import torchvision
import vitkit


def create_model(name, pretrained):
    return vitkit.load_model(name.removeprefix("local-dir:"))
'''


@pytest.mark.parametrize(
    ("library", "package", "source"), [("huggingface", "transformers", TRANSFORMERS), ("timm", "timm", TIMM)]
)
def test_libraries_bear_a_broken_torchvision(library: str, package: str, source: str, tmp_path: Path) -> None:
    for name, text in ((package, source), ("torchvision", TORCHVISION)):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text(text)
    save_model(random_model(model_config("ViT-64x2x2/16", 3, 32)), tmp_path / "model")
    code = "import sys; sys.path.insert(0, sys.argv.pop()); from vitkit.cli.main import run; "
    code += "sys.exit(run(sys.argv[1:]))"
    arguments = ["convert", str(tmp_path / "model"), str(tmp_path / "out"), "--to", library]
    command = [sys.executable, "-c", code, *arguments, "--against", library, str(tmp_path / "packages")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    parity = " ".join(done.stdout.split()).partition("parity ")[2]
    assert parity.startswith("read back by vitkit: logits")
    assert f"{library}'s own model beside vitkit's:" in parity

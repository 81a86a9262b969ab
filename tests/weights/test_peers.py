"""Other libraries beside a torchvision that does not load; stand-ins take the place of all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.random_models import random_model
from vitkit.cli.main import run
from vitkit.models.zoo import model_config
from vitkit.weights.loading import save_model

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


def test_the_line_of_parity_names_the_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(random_model(model_config("ViT-64x2x2/16", 3, 32)), tmp_path / "model")
    assert run(["convert", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "timm"]) == 0
    parity = " ".join(capsys.readouterr().out.split()).partition("parity ")[2]
    assert "this is vitkit beside itself, --against timm runs timm's own model" in parity

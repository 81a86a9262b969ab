"""What `vitkit` offers, and that looking at it is cheap."""

import gc
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import vitkit
from vitkit.cli.main import VERBS

PUBLIC = {
    "Predictor",
    "ResNet",
    "ResNetConfig",
    "Run",
    "SeriesOptions",
    "ViT",
    "ViTConfig",
    "VitkitError",
    "__version__",
    "advise",
    "bench",
    "build_model",
    "convert",
    "create_model",
    "evaluate",
    "evaluate_protocol",
    "export",
    "fewshot",
    "finetune",
    "finetune_run",
    "inspect",
    "list_models",
    "load_model",
    "model_config",
    "read_series",
    "recipe",
    "save_model",
    "starts",
    "train",
    "train_series",
    "vtab",
    "write_report",
}


def test_a_change_of_the_public_names_is_deliberate() -> None:
    assert set(vitkit.__all__) == PUBLIC == set(dir(vitkit))


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(vitkit, name).__doc__


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'modle'"):
        _ = vitkit.modle


@pytest.mark.parametrize(
    "command", [["-c", "import vitkit"], ["-c", "import vitkit; vitkit.starts()"], ["-m", "vitkit", "--help"]]
)
def test_looking_does_not_import_torch(command: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", *command], capture_output=True, text=True, check=True
    )
    imported = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines()}
    assert not imported & {"torch", "numpy", "PIL", "tyro", "rich", "matplotlib"}


USE = """
import sys
import numpy as np
import vitkit
folder = sys.argv[1]
vitkit.save_model(vitkit.create_model("ViT-16x1x2/4", num_classes=10, image_size=8), folder)
vitkit.Predictor(folder)(np.zeros((8, 8, 3), np.uint8))
vitkit.load_model(folder)
vitkit.evaluate
vitkit.finetune
print(*sys.modules)
"""


def test_whoever_loads_and_predicts_does_not_wait_for_what_draws(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path / "model")], capture_output=True, text=True, check=True
    )
    assert not {"matplotlib", "jinja2", "sklearn", "pyarrow", "rich"} & set(result.stdout.split())


HELP = [
    *([verb, "--help"] for verb in VERBS),
    ["help", "predict"],
    ["train", "--recipe", "photos", "--help"],
    ["train", "--lerning-rate", "1e-3"],
    ["train", "--recipe", "fotos"],
    ["starts", "vit-b16*"],
    ["starts", "vit-b17-in21k"],
    ["evaluate"],
    ["evaluate", "model", "--batchsize", "8"],
    ["convert", "model", "out", "--to", "tinm"],
]


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_words_about_options_wait_for_no_library(arguments: list[str]) -> None:
    """Help, and what is said about a command line that is wrong, come before torch and its like."""
    code = (
        f"import sys; from vitkit.cli.main import run; code = run({arguments}); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    words, _, modules = result.stderr.rstrip("\n").rpartition("\n")
    assert "Traceback" not in words and (words or "usage" in result.stdout or arguments[0] == "starts")
    heavy = {"torch", "numpy", "PIL", "pyarrow", "sklearn", "matplotlib", "safetensors", "jinja2"}
    assert not {name.split(".")[0] for name in modules.split()} & heavy


def test_the_fixed_interface_of_models() -> None:
    import torch

    model = vitkit.create_model("ViT-16x1x2/4", num_classes=3, image_size=(8, 12))
    taps: dict[str, torch.Tensor] = {}
    assert model(torch.zeros(2, 3, 8, 12), taps=taps).shape == (2, 3)
    assert model.features(torch.zeros(2, 3, 8, 12)).shape == (2, 16)
    assert "ViT-B/16" in vitkit.list_models("ViT-B*")


@pytest.mark.parametrize("on", [True, False])
def test_an_import_leaves_the_garbage_collector_as_it_was(on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    during: list[bool] = []

    def imported(home: str) -> object:
        during.append(gc.isenabled())
        if home != "vitkit.jobs.train":
            raise ImportError(home)
        return importlib.import_module(home)

    monkeypatch.setattr(vitkit, "import_module", imported)
    try:
        (gc.enable if on else gc.disable)()
        assert callable(vitkit.train)
        with pytest.raises(ImportError):
            _ = vitkit.bench
        assert gc.isenabled() == on and during == [False, False]
    finally:
        gc.enable()

"""vitkit: the Vision Transformer of "An Image is Worth 16x16 Words", whole and for real use.

Everything public is here; names are loaded when first used, so that `import vitkit` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitkit._version import __version__
from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from vitkit.apps.convert import convert
    from vitkit.apps.evaluate import evaluate
    from vitkit.apps.inspection import inspect
    from vitkit.apps.predict import Predictor
    from vitkit.apps.recipes import recipe
    from vitkit.apps.run import Run
    from vitkit.apps.train import train
    from vitkit.apps.write_report import write_report
    from vitkit.models.resnet import ResNet
    from vitkit.models.resnet_config import ResNetConfig
    from vitkit.models.vit import ViT
    from vitkit.models.vit_config import ViTConfig
    from vitkit.models.zoo import build_model, create_model, list_models, model_config
    from vitkit.weights import load_model, save_model

_HOMES = {
    "Predictor": "vitkit.apps.predict",
    "ResNet": "vitkit.models.resnet",
    "ResNetConfig": "vitkit.models.resnet_config",
    "Run": "vitkit.apps.run",
    "ViT": "vitkit.models.vit",
    "ViTConfig": "vitkit.models.vit_config",
    "build_model": "vitkit.models.zoo",
    "convert": "vitkit.apps.convert",
    "create_model": "vitkit.models.zoo",
    "evaluate": "vitkit.apps.evaluate",
    "inspect": "vitkit.apps.inspection",
    "list_models": "vitkit.models.zoo",
    "load_model": "vitkit.weights",
    "model_config": "vitkit.models.zoo",
    "recipe": "vitkit.apps.recipes",
    "save_model": "vitkit.weights",
    "train": "vitkit.apps.train",
    "write_report": "vitkit.apps.write_report",
}

__all__ = [
    "Predictor",
    "ResNet",
    "ResNetConfig",
    "Run",
    "ViT",
    "ViTConfig",
    "VitkitError",
    "__version__",
    "build_model",
    "convert",
    "create_model",
    "evaluate",
    "inspect",
    "list_models",
    "load_model",
    "model_config",
    "recipe",
    "save_model",
    "train",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'vitkit' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__

"""vitkit: the Vision Transformer of "An Image is Worth 16x16 Words", whole and for real use.

Everything public is here; names are loaded when first used, so that `import vitkit` does not import torch.
"""

from typing import TYPE_CHECKING

from vitkit._version import __version__
from vitkit.errors import VitkitError
from vitkit.lazy import load_lazily

if TYPE_CHECKING:
    from vitkit.jobs.advice.advise import advise
    from vitkit.jobs.bench.bench import bench
    from vitkit.jobs.classifier import ViTClassifier
    from vitkit.jobs.compare.compare import compare
    from vitkit.jobs.convert import convert
    from vitkit.jobs.dataset import ImageDataset
    from vitkit.jobs.embed import embed
    from vitkit.jobs.evaluate import evaluate, evaluate_protocol
    from vitkit.jobs.export import export
    from vitkit.jobs.fewshot.fewshot import fewshot
    from vitkit.jobs.finetune import finetune, finetune_run
    from vitkit.jobs.inspect import inspect
    from vitkit.jobs.list_runs import list_runs
    from vitkit.jobs.predict import Predictor
    from vitkit.jobs.pretrain import pretrain
    from vitkit.jobs.recipes import recipe
    from vitkit.jobs.report import write_report
    from vitkit.jobs.reproduce.reproduce import reproduce
    from vitkit.jobs.series.series import train_series
    from vitkit.jobs.study.ablate import ablate
    from vitkit.jobs.study.scale import scale
    from vitkit.jobs.trackers import log_to
    from vitkit.jobs.train import train
    from vitkit.jobs.vtab.vtab import vtab
    from vitkit.listener import Listener
    from vitkit.models.build import build_model
    from vitkit.models.config.resnet_config import ResNetConfig
    from vitkit.models.config.vit_config import ViTConfig
    from vitkit.models.resnet import ResNet
    from vitkit.models.vit import ViT
    from vitkit.models.zoo import list_models, model_config
    from vitkit.runs.checkpoints import load_model
    from vitkit.runs.config import Run
    from vitkit.runs.series_options import SeriesOptions
    from vitkit.runs.series_record import read_series
    from vitkit.weights import save_model
    from vitkit.weights.create import create_model
    from vitkit.weights.published import starts

_HOMES = {
    "ImageDataset": "vitkit.jobs.dataset",
    "Listener": "vitkit.listener",
    "Predictor": "vitkit.jobs.predict",
    "ResNet": "vitkit.models.resnet",
    "ResNetConfig": "vitkit.models.config.resnet_config",
    "Run": "vitkit.runs.config",
    "SeriesOptions": "vitkit.runs.series_options",
    "ViT": "vitkit.models.vit",
    "ViTClassifier": "vitkit.jobs.classifier",
    "ViTConfig": "vitkit.models.config.vit_config",
    "ablate": "vitkit.jobs.study.ablate",
    "advise": "vitkit.jobs.advice.advise",
    "bench": "vitkit.jobs.bench.bench",
    "build_model": "vitkit.models.build",
    "compare": "vitkit.jobs.compare.compare",
    "convert": "vitkit.jobs.convert",
    "create_model": "vitkit.weights.create",
    "embed": "vitkit.jobs.embed",
    "evaluate": "vitkit.jobs.evaluate",
    "evaluate_protocol": "vitkit.jobs.evaluate",
    "export": "vitkit.jobs.export",
    "fewshot": "vitkit.jobs.fewshot.fewshot",
    "finetune": "vitkit.jobs.finetune",
    "finetune_run": "vitkit.jobs.finetune",
    "inspect": "vitkit.jobs.inspect",
    "list_models": "vitkit.models.zoo",
    "list_runs": "vitkit.jobs.list_runs",
    "load_model": "vitkit.runs.checkpoints",
    "log_to": "vitkit.jobs.trackers",
    "model_config": "vitkit.models.zoo",
    "pretrain": "vitkit.jobs.pretrain",
    "read_series": "vitkit.runs.series_record",
    "recipe": "vitkit.jobs.recipes",
    "reproduce": "vitkit.jobs.reproduce.reproduce",
    "save_model": "vitkit.weights",
    "scale": "vitkit.jobs.study.scale",
    "starts": "vitkit.weights.published",
    "train": "vitkit.jobs.train",
    "train_series": "vitkit.jobs.series.series",
    "vtab": "vitkit.jobs.vtab.vtab",
    "write_report": "vitkit.jobs.report",
}

__all__ = [
    "ImageDataset",
    "Listener",
    "Predictor",
    "ResNet",
    "ResNetConfig",
    "Run",
    "SeriesOptions",
    "ViT",
    "ViTClassifier",
    "ViTConfig",
    "VitkitError",
    "__version__",
    "ablate",
    "advise",
    "bench",
    "build_model",
    "compare",
    "convert",
    "create_model",
    "embed",
    "evaluate",
    "evaluate_protocol",
    "export",
    "fewshot",
    "finetune",
    "finetune_run",
    "inspect",
    "list_models",
    "list_runs",
    "load_model",
    "log_to",
    "model_config",
    "pretrain",
    "read_series",
    "recipe",
    "reproduce",
    "save_model",
    "scale",
    "starts",
    "train",
    "train_series",
    "vtab",
    "write_report",
]


__getattr__, __dir__ = load_lazily(__name__, _HOMES, __all__)

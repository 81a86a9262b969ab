"""vitkit: the Vision Transformer of "An Image is Worth 16x16 Words", whole and for real use.

Everything public is here; names are loaded when first used, so that `import vitkit` does not import torch.
"""

import gc
import re
from importlib import import_module
from pkgutil import get_data
from typing import TYPE_CHECKING, Any

from vitkit._version import __version__ as __version__
from vitkit.errors import VitkitError as VitkitError

if TYPE_CHECKING:
    from vitkit.jobs.advise import advise as advise
    from vitkit.jobs.bench import bench as bench
    from vitkit.jobs.classifier import ViTClassifier as ViTClassifier
    from vitkit.jobs.compare import compare as compare
    from vitkit.jobs.convert import convert as convert
    from vitkit.jobs.dataset import ImageDataset as ImageDataset
    from vitkit.jobs.embed import embed as embed
    from vitkit.jobs.evaluate import evaluate as evaluate
    from vitkit.jobs.evaluate import evaluate_protocol as evaluate_protocol
    from vitkit.jobs.export import export as export
    from vitkit.jobs.extend import extend as extend
    from vitkit.jobs.fewshot import fewshot as fewshot
    from vitkit.jobs.finetune import finetune as finetune
    from vitkit.jobs.finetune import finetune_run as finetune_run
    from vitkit.jobs.inspect import inspect as inspect
    from vitkit.jobs.list_runs import list_runs as list_runs
    from vitkit.jobs.predict import Predictor as Predictor
    from vitkit.jobs.pretrain import pretrain as pretrain
    from vitkit.jobs.recipes import recipe as recipe
    from vitkit.jobs.report import write_report as write_report
    from vitkit.jobs.reproduce.reproduce import reproduce as reproduce
    from vitkit.jobs.serve import serve as serve
    from vitkit.jobs.study.ablate import ablate as ablate
    from vitkit.jobs.study.scale import scale as scale
    from vitkit.jobs.trackers import log_to as log_to
    from vitkit.jobs.train import train as train
    from vitkit.jobs.train import train_series as train_series
    from vitkit.jobs.try_starts import try_starts as try_starts
    from vitkit.jobs.vtab import vtab as vtab
    from vitkit.listener import Listener as Listener
    from vitkit.models.build import build_model as build_model
    from vitkit.models.config import ResNetConfig as ResNetConfig
    from vitkit.models.config import ViTConfig as ViTConfig
    from vitkit.models.resnet import ResNet as ResNet
    from vitkit.models.vit import ViT as ViT
    from vitkit.models.zoo import list_models as list_models
    from vitkit.models.zoo import model_config as model_config
    from vitkit.runs.config import Run as Run
    from vitkit.runs.run_options import SeriesOptions as SeriesOptions
    from vitkit.runs.series_record import read_series as read_series
    from vitkit.runs.start import load_model as load_model
    from vitkit.weights.create import create_model as create_model
    from vitkit.weights.loading import save_model as save_model
    from vitkit.weights.published import starts as starts

# The names that are imported above for type checkers alone are read from this source, so that each is written
# once.
_SOURCE = (get_data(__name__, "__init__.py") or b"").decode()
_HOMES = {name: home for home, name in re.findall(r"^    from (\S+) import (\S+) as ", _SOURCE, re.MULTILINE)}
__all__ = sorted([*_HOMES, "VitkitError", "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # A full collection passes over all that torch has imported, a tenth of a second, and imports leave
    # nothing to collect.
    collects = gc.isenabled()
    gc.disable()
    try:
        return getattr(import_module(_HOMES[name]), name)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return __all__

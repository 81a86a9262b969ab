"""Screens of all verbs, whole: standard output and standard error at the 110 columns of a pipe.

The pictures are told apart by their brightness, so that every accuracy is that of a model which is always
right, on any processor. The folder's path has the same length everywhere: lines break where they did.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.golden.masks import MASKS
from tests.golden.screen import screen
from tests.helpers.photos import image_folder, saved
from tests.vtab_layout import small_task
from vitkit.cli.help import VERBS
from vitkit.cli.main import run

pytestmark = pytest.mark.usefixtures("without_report")

MODEL = "--model ViT-16x2x2/4 --image-size 8 --batch-size 8 --warmup-steps 2 --threads 1"
SCREENS = f"""
advise photos run --no-cache --threads 1
train --data photos {MODEL} --steps 20 --out new
train --data photos {MODEL} --steps 4 --runs 2 --quiet --out series
finetune run --data photos --steps 6 --threads 1 --quiet --out new
finetune run --data photos --recipe paper --image-size 12 --layer-decay 0.9 --head-rate 2 --dry-run
finetune start --data photos --freeze backbone --threads 1 --out frozen
extend head
extend head --without photos/light/0.png photos/dark/1.png --check photos/dark/1.png
extend head --without light
extend run --without light
pretrain photos {MODEL} --steps 4 --out new
evaluate run
evaluate run --data nowhere
compare run tuned --speed-seconds 0
fewshot run tuned --data photos --shots 1,5 --methods ridge --out few
ablate digits --vary pool=token,mean --data photos --seeds 2 --fixed-rate {MODEL} --steps 9 --quiet
reproduce table8 --data photos --steps 4 --seeds 2 --only learned,none --threads 1 --out study --quiet
vtab run --root vtab --steps 2 --batch-size 8 --protocol finetune --threads 1 --out study
scale digits --recipe digits --points 5 {MODEL} --steps 10 --out study
predict run photos/light/0.png photos/light/2.png --top 1
predict run photos/dark/1.png --csv
predict run notes.txt
embed photos run
embed photos run --out features.npy
runs .
runs nowhere
report run
inspect run --images photos/dark/1.png
data check photos
data show photos
convert run other --to timm
convert run other.npz --accept-change
convert run other.npz
export run run --engine onnxruntime
serve run
serve photos
card run
cost run ViT-B/16 BiT-R50x1 R50+ViT-B/16
cost ViT-S/16 --epochs 300 --images 1281167
bench ViT-16x1x1/4 --sizes 8 --minutes 0.01 --precision float32 --threads 1
models ViT-Ti/16 ViT-Ti/16-gap BiT-R50x1 R50+ViT-B/16 --image-size 384 --num-classes 10
starts vit-ti16-deit-in1k vit-s16-dinov3
starts run start nowhere vit-ti16-deit-in1k --try photos --shots 2 --seeds 3
starts run --minutes 3
recipes
completion tcsh
"""
"""Command lines of every verb; those of a verb are given one after the other in a folder of its own."""

OF_BENCHMARKS = (
    (r"^.*, \d+ of \d+ cores.*\nkernels: .*", "PROCESSOR, KERNELS"),
    (r"\b\d[\d.,]*\b", "N"),
    (r"not measured", "TIME"),  # the slowest of a hundred calls, where there is time for as many
    (r" {2,}", "  "),
)
"""Masks of a benchmark, whose rows are numbers of this machine alone."""

OF_RECIPES = ((r"^.*the paper's Table \d.*\n(?: {30,}.*\n)*", ""),)
"""The rows that tests/jobs/test_recipes.py has from the paper."""

OF_HEADS = ((r"penalty [\d.]+, temperature [\d.]+", "penalty N, temperature N"),)
"""The start of a head in closed form has other weights each time."""
OF_STARTS = (
    (r"(?<=e-05) +\S+ +\S+(?=  not known)", "  TIMES"),
    (r" +ms +min  licence", "  ms  min  licence"),
)
"""Masks of a tournament: milliseconds of an image, and minutes."""

LENGTH = 72
"""The letters of the working folder's path: those of a temporary folder, and as many as are missing."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    """A folder with pictures, new weights, a run and its fine-tuning."""
    root = tmp_path_factory.mktemp("made")
    image_folder(root / "photos")
    (root / "notes.txt").write_text("no image")
    saved("ViT-16x1x1/4", 2, root / "start", size=8)
    small_task(root / "vtab" / "clevr_count", classes=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for line in (
            f"train --data photos {MODEL} --steps 40 --out run",
            "finetune run --data photos --steps 6 --threads 1 --out tuned",
            "finetune start --data photos --freeze backbone --threads 1 --out head",
        ):
            assert run(line.split()) == 0
    return root


@pytest.fixture
def inside(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a copy of the folder."""
    missing = LENGTH - len(f"{tmp_path}/")
    if missing < 1:
        pytest.skip(f"lines would break elsewhere: {tmp_path} has more than {LENGTH - 2} letters")
    folder = tmp_path / ("f" * missing)
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("VITKIT_CACHE", str(folder / "cache"))
    return folder


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("verb", VERBS)
def test_screens(verb: str, capsys: pytest.CaptureFixture[str], text_file: SnapshotAssertion) -> None:
    own = {"bench": OF_BENCHMARKS, "recipes": OF_RECIPES, "extend": OF_HEADS, "finetune": OF_HEADS}
    own["starts"] = OF_STARTS
    masks = [*MASKS, *own.get(verb, ())]
    lines = [line.split() for line in SCREENS.splitlines() if line.split()[:1] == [verb]]
    assert lines and screen(lines, capsys, masks) == text_file


def test_what_comes_next_is_a_command_as_it_would_be_typed() -> None:
    here, count = Path(__file__), 0
    commands = (here.parents[2] / "docs/commands.md").read_text()
    for path in (here.parent / "__snapshots__" / here.stem).glob("*.txt"):
        for line in re.findall(r"^(?:Next:|     ) vitkit (.*)$", path.read_text(), re.MULTILINE):
            verb, *arguments = shlex.split(line.partition("   (")[0])
            options = [word for word in arguments if word.startswith("--")]
            assert verb in VERBS and all(f"`{option}" in commands for option in options), line
            count += 1
    assert count > 20

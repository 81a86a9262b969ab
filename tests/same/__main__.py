"""`python -m tests.same REVISION`: see `scripts/same-as`."""

import argparse
import io
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.same.compare import Difference, compare, compare_runs, describe, read_values
from tests.vtab_layout import small_task

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 900.0
"""After which a command is given up."""

SIZE = "--model ViT-16x2x2/4 --image-size 16 --batch-size 12 --threads 1"
OFTEN = "--steps 24 --warmup-steps 4 --evaluate-every 12 --checkpoint-every 6 --log-every 2"
SMALL = f"{SIZE} {OFTEN}"
RUNS = {
    "digits": f"train --recipe digits {OFTEN} --threads 1",
    "digits killed": f"train --recipe digits {OFTEN} --mixup 0.2 --dropout 0.1 --workers 1 --threads 1",
    "augmented": f"train --recipe photos --data photos {SMALL} --rand-augment 2 --random-erasing 0.2",
    "photos by 2 processes killed": f"train --data photos {SMALL} --micro-batch-size 5 --processes 2",
    "labels": f"train --data tags.csv --task multi-label {SMALL} --processes 2",
    "finetuned": "finetune digits --data photos --steps 24 --batch-size 12 --evaluate-every 12 --threads 1",
    "finetuned as in the paper": "finetune digits --data photos --recipe paper --steps 24 --batch-size 12 "
    "--image-size 20 --warmup-steps 4 --threads 1",
    "masked patches": f"pretrain photos --objective masked-patches {SMALL}",
    "simmim": f"pretrain photos --objective simmim {SMALL}",
    "mae": f"pretrain photos --objective mae {SMALL}",
    "bit": f"train --data photos {SMALL} --model BiT-R1-1x0.5 --optimizer sgd --image-size 32",
    "hybrid, few shots": f"train --data photos {SMALL} --model R1-1x0.5+ViT-16x1x2/8 "
    "--fewshot.data digits --fewshot.every 12 --fewshot.shots 1,2",
}
"""The trainings. Those whose name says so are killed by SIGKILL at a checkpoint and continued."""

TINY = "--model ViT-16x1x2/4 --image-size 8 --batch-size 16 --warmup-steps 2 --threads 1"
VERBS = {
    "card": "card digits",
    "cost": "cost digits ViT-B/16 BiT-R50x1",
    "data": "data check photos",
    "predict": "predict digits photos",
    "evaluate": "evaluate augmented",
    "evaluate other images": "evaluate finetuned --data photos --split val",
    "fewshot": "fewshot finetuned --data photos --shots 1,5 --out few",
    "compare": "compare augmented finetuned --speed-seconds 0 --out compared",
    "starts": "starts",
    "runs": "runs .",
    "advise": "advise photos digits --no-cache --seconds 5 --threads 1",
    "bench": "bench ViT-16x1x1/4 --sizes 8 --minutes 0.02 --precision float32 --threads 1",
    "vtab": "vtab digits --root vtab --steps 2 --batch-size 8 --protocol finetune --threads 1 --out tasks",
    "ablate": f"ablate digits --vary pool=token,mean --seeds 2 --fixed-rate {TINY} --steps 6 --out ablation",
    "scale": f"scale digits --recipe digits --points 5 {TINY} --steps 6 --out scaled",
    "reproduce": "reproduce table8 --data photos --steps 4 --seeds 2 --only learned,none --threads 1 --out t",
    "an error": "card nowhere",
}
"""A command line of each verb that has --json."""


@dataclass(frozen=True)
class Tree:
    """A revision's source, and the folder in which its commands are given."""

    name: str
    source: Path
    folder: Path

    def start(self, line: str) -> "subprocess.Popen[str]":
        """Begin a command of vitkit."""
        print(f"{line}, {self.name}", file=sys.stderr)
        return subprocess.Popen(
            [sys.executable, "-m", "vitkit", *shlex.split(line)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.source / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, line: str) -> tuple[int, str, str]:
        """Run a command to its end; return its exit code and what it printed."""
        process = self.start(line)
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        return process.returncode, out, err

    def train(self, line: str, out: Path, killed: bool) -> str:
        """Train a run; return what went wrong, "" if nothing."""
        command = f"{line} --out {out.name}"
        if killed:
            process = self.start(command)
            while process.poll() is None and not [*out.glob("checkpoints/step-*/COMMIT")]:
                time.sleep(0.002)
            if process.poll() is not None:
                return f"{self.name}: it ended before it could be killed: {process.communicate()[1][-300:]}"
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        code, _out, err = self.run(command)
        return f"{self.name}: exit code {code}: {err.strip()[-300:]}" if code else ""


def write_inputs(folder: Path) -> None:
    """Write the images of a tree: class folders of photos, labels, a task of VTAB."""
    draw = np.random.default_rng(0)
    for number in range(72):
        label = number % 3
        coarse = draw.integers(0, 128, (8, 8, 3)) + np.array([40, 20, 0]) * label
        path = folder / "photos" / "abc"[label] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(coarse.astype(np.uint8)).resize((24 + number % 5, 24))
        image.save(path, quality=90)
    tags = [("a", "a;c", "b")[number % 3] for number in range(72)]
    rows = [f"photos/{'abc'[number % 3]}/{number}.jpg,{tag}\n" for number, tag in enumerate(tags)]
    (folder / "tags.csv").write_text("path,labels\n" + "".join(rows))
    small_task(folder / "vtab" / "clevr_count", classes=8)


def compare_commands(trees: Sequence[Tree], with_json: bool) -> Iterator[tuple[str, Difference]]:
    """Train every run by both trees and compare them, then what the verbs print of these runs with --json."""
    for name, line in RUNS.items():
        out = name.replace(" ", "-").replace(",", "")
        failed = [tree.train(line, tree.folder / out, "killed" in name) for tree in trees]
        difference = compare_runs(*(tree.folder / out for tree in trees))
        difference.changed[:0] = filter(None, failed)
        yield f"run: {name}", difference
    for name, line in VERBS.items() if with_json else ():
        printed: list[dict[str, Any]] = []
        for tree in trees:
            code, out, err = tree.run(f"{line} --json")
            try:
                value = read_values(out, tree.folder)
            except ValueError:
                value = f"{tree.name}: no JSON: {(err or out).strip()[-200:]}"
            printed.append({"exit code": code, "json": value})
        yield f"json: {name}", compare(printed[0], printed[1], keys_alone=name == "bench")


def extract(revision: str, folder: Path) -> str:
    """Write a revision's source into a folder; return the hash of its commit."""
    arguments = ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    commit = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    if not commit:
        sys.exit(f"same-as: git knows no revision named {revision}.")
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return commit


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/same-as", description="Does this tree do the same as another revision?"
    )
    parser.add_argument("revision", help="a commit, tag or branch")
    parser.add_argument("--only", choices=("runs",), help="leave out what the verbs print")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work in a new folder that stays")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, suppress(KeyboardInterrupt):
        work = (given.keep or Path(temporary)).resolve()
        work.mkdir(exist_ok=True)
        commit = extract(given.revision, work / "source")
        os.environ["VITKIT_CACHE"] = str(work / "cache")
        trees = [Tree("other", work / "source", work / "other"), Tree("this", ROOT, work / "this")]
        for tree in trees:
            tree.folder.mkdir()
            write_inputs(tree.folder)
        table, same = describe(compare_commands(trees, given.only != "runs"))
        print(
            f"this tree beside {commit[:12]}, {os.cpu_count()} processors, Python {sys.version.split()[0]}\n"
        )
        print(table)
        return 0 if same else 1
    return 130


if __name__ == "__main__":
    sys.exit(main())

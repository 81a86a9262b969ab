"""`python -m tests.same REVISION`: see `scripts/same-as`."""

import argparse
import io
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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
        """Begin a command of vitkit, or Python with what follows the word `python`."""
        arguments = shlex.split(line)
        return subprocess.Popen(
            [sys.executable, *(arguments[1:] if arguments[0] == "python" else ("-m", "vitkit", *arguments))],
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


class Progress:
    """Says which command is under way and how long all of them will take."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.began = total, 0, time.monotonic()

    def say(self, what: str) -> None:
        gone = time.monotonic() - self.began
        left = f", about {gone / self.done * (self.total - self.done) / 60:.0f} min left" if self.done else ""
        print(f"{self.done + 1} of {self.total}: {what}{left}", file=sys.stderr, flush=True)
        self.done += 1


def write_inputs(folder: Path) -> None:
    """Write the images of a tree: class folders of small and large photos, labels, a task of VTAB."""
    draw = np.random.default_rng(0)
    for name, count, side in (("photos", 72, 24), ("many", 250, 256)):
        for number in range(count):
            label = number % 3
            coarse = draw.integers(0, 128, (8, 8, 3)) + np.array([40, 20, 0]) * label
            image = Image.fromarray(coarse.astype(np.uint8)).resize((side + number % 5, side))
            path = folder / name / "abc"[label] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, quality=90)
    tags = [("a", "a;c", "b")[number % 3] for number in range(72)]
    rows = [f"photos/{'abc'[number % 3]}/{number}.jpg,{tag}\n" for number, tag in enumerate(tags)]
    (folder / "tags.csv").write_text("path,labels\n" + "".join(rows))
    small_task(folder / "vtab" / "clevr_count", classes=8)


def compare_trainings(trees: Sequence[Tree], progress: Progress) -> list[tuple[str, Difference]]:
    """Train every run by both trees, and compare them."""
    results = []
    for name, line in RUNS.items():
        out = name.replace(" ", "-").replace(",", "")
        failed = []
        for tree in trees:
            progress.say(f"{name}, {tree.name}")
            failed.append(tree.train(line, tree.folder / out, "killed" in name))
        difference = Difference(changed=[text for text in failed if text])
        difference.add(compare_runs(*(tree.folder / out for tree in trees)))
        results.append((f"run: {name}", difference))
    return results


def compare_json(trees: Sequence[Tree], progress: Progress) -> list[tuple[str, Difference]]:
    """Compare what the verbs print with --json."""
    results = []
    for name, line in VERBS.items():
        codes, values, difference = [], [], Difference()
        for tree in trees:
            progress.say(f"{name} --json, {tree.name}")
            code, out, err = tree.run(f"{line} --json")
            codes.append(code)
            try:
                values.append(read_values(out, tree.folder))
            except ValueError:
                difference.changed.append(
                    f"{tree.name}: no JSON, exit code {code}: {(err or out).strip()[-200:]}"
                )
        if not difference.changed:
            difference = compare(values[0], values[1], keys_alone=name == "bench")
            difference.add(compare(codes[0], codes[1], "exit code"))
        results.append((f"json: {name}", difference))
    return results


def seconds(tree: Tree, line: str) -> float:
    """Return the seconds of a command, or nan where it fails."""
    began = time.perf_counter()
    code, _out, err = tree.run(line)
    if code:
        print(f"{tree.name}: {line}: exit code {code}: {err.strip()[-300:]}", file=sys.stderr)
        return float("nan")
    return time.perf_counter() - began


TIMED = "train --data many --model ViT-192x4x3/16 --image-size 96 --batch-size 32 --threads 1"


def training_speed(tree: Tree) -> float:
    """Return images a second of a training: the median of what it writes down."""
    out = tree.folder / f"speed-{time.monotonic_ns()}"
    if tree.run(f"{TIMED} --steps 60 --log-every 10 --out {out.name}")[0]:
        return float("nan")
    rows = [json.loads(line) for line in (out / "speed.jsonl").read_text().splitlines()]
    return statistics.median(float(row["images_per_second"]) for row in rows)


def predict_speed(tree: Tree) -> float:
    """Return images a second of predict, without the seconds in which it starts."""
    few = seconds(tree, "predict timed many/a/0.jpg --json")
    return 4 * 250 / (seconds(tree, "predict timed many many many many --json") - few)


TIMES: dict[str, tuple[int, Callable[[Tree], float]]] = {
    "seconds of vitkit --help": (9, lambda tree: seconds(tree, "--help")),
    "seconds of import vitkit": (7, lambda tree: seconds(tree, "python -c 'import vitkit'")),
    "seconds of the first screen": (
        5,
        lambda tree: seconds(tree, "finetune timed --data many --steps 100 --threads 1 --dry-run"),
    ),
    "images a second of training": (3, training_speed),
    "images a second of predict": (3, predict_speed),
}
"""The timed commands, and how often each is timed."""


def time_both(trees: Sequence[Tree], progress: Progress) -> str:
    """Time both trees in turns, and make a table of medians and of the ratios of this one to the other."""
    for tree in trees:
        tree.run(f"{TIMED} --steps 2 --out timed")
    lines = ["| what | other | this | ratio, this to other | quartiles |", "| --- | --- | --- | --- | --- |"]
    for name, (rounds, measure) in TIMES.items():
        pairs = []
        for number in range(rounds):
            measured = {}
            for tree in trees if number % 2 == 0 else trees[::-1]:
                progress.say(f"{name}, {tree.name}")
                measured[tree.name] = measure(tree)
            pairs.append([measured[tree.name] for tree in trees])
        old, new = np.array(pairs).T
        low, ratio, high = np.quantile(new / old, (0.25, 0.5, 0.75))
        lines.append(
            f"| {name} | {np.median(old):.3g} | {np.median(new):.3g} "
            f"| {ratio:.3f} | {low:.3f} to {high:.3f} |"
        )
    return "\n".join(lines)


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
        prog="scripts/same-as", description="This tree beside another revision: the same, and as fast?"
    )
    parser.add_argument("revision", help="a commit, tag or branch")
    parser.add_argument("--only", choices=("runs", "json", "times"), help="a part")
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
        parts = [given.only] if given.only else ["runs", "json", "times"]
        needed = parts if given.only != "json" else ["runs", "json"]  # the verbs are given runs
        total = {"runs": len(RUNS), "json": len(VERBS), "times": sum(rounds for rounds, _ in TIMES.values())}
        progress = Progress(2 * sum(total[part] for part in needed))
        results = compare_trainings(trees, progress) if "runs" in needed else []
        results += compare_json(trees, progress) if "json" in needed else []
        times = time_both(trees, progress) if "times" in needed else ""
        table, same = describe(results)
        print(
            f"this tree beside {commit[:12]}, {os.cpu_count()} processors, Python {sys.version.split()[0]}\n"
        )
        if results:
            print(table)
        if times:
            print(f"\n{times}" if results else times)
        return 0 if same else 1
    return 130


if __name__ == "__main__":
    sys.exit(main())

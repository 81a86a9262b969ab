"""Memory and file descriptors of long commands: flat, whatever the number of images and steps."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from tests.faults.commands import PROGRAM, forked
from tests.faults.entry import without_pictures
from tests.faults.harness import Kind, Outcome
from tests.faults.small_runs import image_folder, training

STEPS, EVALUATED, PREDICTED = 2_000, 20_000, 5_000

# What may grow: the log's and the answers' few bytes for each step or image (20,000 images x 2 classes x 4
# bytes is 0.2 MiB), and the allocator's caches, which settle at some ten MiB after the first third.
MOST_GROWTH = 48 << 20
# A file that stays open at each step, image or validation would make hundreds, or a few; some are open for
# longer than a sample.
MOST_DESCRIPTORS = 3

COMMANDS = ("train", "train --workers 2", "evaluate", "evaluate --workers 2", "predict")


class Memory(Kind):
    """Long commands, sampled ten times a second; the last third is compared with the middle third.

    A third is judged by its most memory and its fewest descriptors: the workers of a validation have a dozen
    open for a moment, which a sample may hit or miss.
    """

    name, count, limit = "memory", len(COMMANDS), 900.0
    sample = ()
    forks_commands = True
    per_process = 1

    def total(self, shared: Path) -> int:
        return len(COMMANDS)

    def prepare(self, folder: Path) -> None:
        images = image_folder(folder / "small", 200)
        ended = forked(
            training(folder / "run", data=str(images), steps=2, every=2), folder, first=without_pictures
        )
        assert ended.code == 0, ended.err
        many = folder / "many" / "test"
        for number in range(EVALUATED):
            path = many / ("dark" if number % 2 else "light") / f"{number}.png"
            if number < 100:
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(path)
            else:
                os.link(many / ("dark" if number % 2 else "light") / f"{number % 100}.png", path)
        shutil.copytree(many.parent / "test" / "dark", folder / "few", copy_function=os.link)

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        verb, *options = COMMANDS[number].split()
        run, many = str(shared / "run"), str(shared / "many")
        if verb == "train":
            options += ("--memory-gib", "0", "--keep", "1")
            arguments = training(folder / "run", *options, data=str(shared / "small"), steps=STEPS, every=500)
        elif verb == "evaluate":
            arguments = ["evaluate", run, "--data", many, "--batch-size", "32", *options]
        else:
            files = sorted(str(path) for path in (shared / "few").iterdir())[:PREDICTED]
            arguments = ["predict", run, *files, "--json"]
        rss, descriptors, code, errors = _sampled(arguments, folder)
        if code != 0:
            return Outcome(
                "traceback" if "Traceback" in errors else "wrong",
                f"{verb}: exit code {code}: {errors[-300:]}",
            )
        third = len(rss) // 3
        figures = (
            f"{COMMANDS[number]}: {rss[third] >> 20} MiB after a third, {max(rss) >> 20} at most, "
            f"{rss[-1] >> 20} at the end; "
            f"{descriptors[third]} descriptors after a third, {max(descriptors)} at most"
        )
        print(figures, flush=True)
        grown = max(rss[2 * third :]) - max(rss[third : 2 * third])
        opened = min(descriptors[2 * third :]) - min(descriptors[third : 2 * third])
        if grown > MOST_GROWTH or opened > MOST_DESCRIPTORS:
            return Outcome("beyond", figures, growth=grown)
        return Outcome("right", figures, growth=max(grown, 0))


def _sampled(arguments: list[str], folder: Path) -> tuple[list[int], list[int], int, str]:
    """Run a command; returns the memory of it and its children, its descriptors, its exit code and its words.

    The samples of the first and last tenth are left out: imports and the report.
    """
    rss: list[int] = []
    descriptors: list[int] = []
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen([*PROGRAM, *arguments], stdout=out, stderr=err, start_new_session=True)
        while process.poll() is None:
            try:
                rss.append(sum(_resident(number) for number in _family(process.pid)))
                descriptors.append(len(list(Path(f"/proc/{process.pid}/fd").iterdir())))
            except OSError:
                pass
            time.sleep(0.1)
    tenth = len(rss) // 10
    rss, descriptors = rss[tenth : len(rss) - tenth], descriptors[tenth : len(descriptors) - tenth]
    return rss or [0], descriptors or [0], process.returncode, (folder / "err").read_text(errors="replace")


def _family(process: int) -> list[int]:
    """A process and its children."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *map(int, children)]


def _resident(process: int) -> int:
    """The bytes of a process in memory; of pages that it shares, as forked workers do, its part alone.

    Counted in each, those pages would make a moment with four workers look like growth. Pages of files are
    left out: they are the libraries', and the process's part of them grows when another one ends.
    """
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]  # none of one that has ended
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return (kilobytes.get("Pss_Anon", 0) + kilobytes.get("Pss_Shmem", 0)) << 10

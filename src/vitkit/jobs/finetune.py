"""Fine-tune a start: train a run whose options are fitted to the start and the data."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from vitkit.errors import VitkitError
from vitkit.jobs.finetune_defaults import choose_start, suit_length, suit_start
from vitkit.jobs.options import Job, TrainingOptions, split_options
from vitkit.jobs.recipes import recipe as named_recipe
from vitkit.jobs.train import carry_out
from vitkit.listener import SILENT, Listener
from vitkit.runs import folder, machine, plan, processes, run_options
from vitkit.runs.config import Run, StartConfig, require_data, with_options
from vitkit.weights.files.download import is_local
from vitkit.world import ALONE


def finetune(
    start: str | Path | StartConfig | None = None,
    data: str | Path = "",
    out: str | Path | None = None,
    *,
    recipe: str = "",
    download: bool = False,
    ask: Callable[[str], bool] | None = None,
    **options: Unpack[TrainingOptions],
) -> folder.TrainedFolder:
    """Fine-tune a model on images: train it with a new head, evaluate it, and write its report.

    Calling it again with the same arguments and folder continues from the last committed checkpoint.

    Args:
        start: a run folder, a file or folder of weights, or an address such as hf:org/name; a `StartConfig`
            has more options. Left out, one of the published starts that this machine fine-tunes on these
            images within an hour.
        data: images with labels, as for `vitkit.train`. Images alone may be given in the place of the start.
        out: the run folder; left out, one below `runs/`.
        recipe: the name of a recipe, "paper" for the paper's; left out, options that suit the number of
            images.
        download: fetch the start that is chosen where none is given, without asking.
        ask: is asked whether to fetch it, with a question; left out, it is fetched with `download` alone.
        options: options of training, as for `vitkit.train`: `learning_rate=1e-3`, `minutes=20`.

    Returns:
        The run folder; for several runs, the folder of the series.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    job, given = split_options(options, out=out)
    processes.divide_threads(ALONE, job.threads)  # before starts are timed
    allow = (lambda _: True) if download else ask
    base = _choose_start_and_data(start, data, recipe, given, job, allow)
    name = base.start.start
    if job.dry_run and folder.kind_of(name).is_fetched and not is_local(name):
        if not start:  # what was chosen is shown
            return folder.TrainedFolder()
        raise VitkitError(
            f"--dry-run fetches nothing, and {name} is not on this machine. vitkit card {shlex.quote(name)} "
            "fetches and describes it; then give the same command again."
        )
    run, opened = _complete_run(base, given, job.listener, keep=not job.is_series)
    return carry_out(job, run, given, opened)


def finetune_run(
    start: str | Path | StartConfig | None = None,
    data: str | Path = "",
    *,
    recipe: str = "",
    download: bool = False,
    listener: Listener = SILENT,
    **options: Unpack[run_options.RunOptions],
) -> Run:
    """Make the run that fine-tunes a start on images, for `vitkit.train`.

    Args:
        start, data, recipe, download, listener, options: as for `vitkit.finetune`.

    Raises:
        VitkitError: there is no such start, no such data or no such recipe.
    """
    allow = (lambda _: True) if download else None
    base = _choose_start_and_data(start, data, recipe, {**options}, Job(listener=listener), allow)
    return _complete_run(base, {**options}, listener)[0]


def _choose_start_and_data(
    start: str | Path | StartConfig | None,
    data: str | Path,
    recipe: str,
    options: Mapping[str, Any],
    job: Job,
    allow: Callable[[str], bool] | None,
) -> Run:
    """Return the recipe's run with the start and the data, where one of them may be left out.

    Raises:
        VitkitError: the chosen start would have to be fetched, and nobody allows it.
    """
    base = named_recipe(recipe) if recipe else Run()
    data = str(data) or base.data
    if isinstance(start, str | Path) and start and not data:
        start, data = folder.sort_out(str(start))
    config = start if isinstance(start, StartConfig) else StartConfig(str(start or ""))
    base = replace(base, data=data, start=config)
    if config.start:
        return base
    run = with_options(base, options)
    require_data(run)
    device = machine.find_device(job.device)
    chosen = choose_start(run, job.folder, device=device, given=options, listener=job.listener)
    job.listener.show(chosen.rows())
    if job.dry_run and not chosen.is_here:
        job.listener.show([("data", [plan.describe_images(plan.list_images(run))])])
    if not (chosen.is_here or job.dry_run) and (
        allow is None or not allow(f"Fetch {chosen.start.name}, {chosen.size}? [y/N] ")
    ):
        if job.command:
            raise chosen.refusal(f"{job.command} --yes", f"vitkit finetune START {shlex.quote(data)}")
        raise chosen.refusal("give download=True", f"vitkit.finetune(START, {data!r})")
    return replace(base, start=replace(config, start=chosen.start.name))


def _complete_run(
    base: Run, options: Mapping[str, Any], listener: Listener, keep: bool = False
) -> tuple[Run, plan.Opened]:
    """Make the run that fine-tunes the start of a recipe's run on its images, and return them with it."""
    with listener.progress("looking at the start"):
        suited = suit_start(with_options(base, options), listener, keep)
    run = with_options(suited.run, options)
    if not base.recipe and run.training != suited.run.training:
        # Another length was given: a warm-up that is left out is fitted to it.
        run = suit_length(replace(suited.run, training=run.training), len(suited.images.splits["train"]))
        run = with_options(run, options)
    return run, suited

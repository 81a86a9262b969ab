"""Show what a run would do, up to its first step; nothing is written."""

from pathlib import Path

import torch

from vitkit.jobs.finetune_recipes import departures
from vitkit.listener import Listener
from vitkit.runs.build import build_new
from vitkit.runs.machine import choose_for, compute_as
from vitkit.runs.outlook import Surroundings, first_screen, free_memory
from vitkit.runs.plan import Plan
from vitkit.runs.step_cost import measure_cost
from vitkit.text import format_bytes, format_duration, pluralize


def preview(plan: Plan, folder: Path, has_begun: bool, listener: Listener) -> None:
    """Show data, splits, start, model, length, time, memory and folder of a run, without training it.

    Args:
        plan, folder, has_begun: as `vitkit.jobs.train_run.foresee_run` returns them.
        listener: hears them.
    """
    run, data, config = plan.run, plan.images, plan.config
    model = build_new(run, config, listener, drawn=False)
    training = run.training
    chosen = choose_for(config, plan.device, training.precision, phase="training", exact=training.exact)
    compute_as(model, chosen)
    surroundings = Surroundings(folder, f"{plan.device}, {chosen.precision}", torch.get_num_threads())
    from_paper = [] if plan.record is None else departures(run, len(data.splits["train"]))
    listener.show(first_screen(run, data, model, surroundings, plan.record, from_paper))
    cost = measure_cost(run, data, config, plan.device, listener)
    free = free_memory(plan.device)
    room = "" if free is None else f", {format_bytes(free)} are free"
    time = f"about {format_duration(cost.seconds)} for {pluralize(cost.steps, 'step')} and the evaluations"
    memory = f"{format_bytes(cost.memory)} at most for a step, beside PyTorch's own{room}"
    listener.show([("time", [f"{time} (measured on a few)"]), ("memory", [memory])])
    if has_begun:
        listener.show([("begun", [f"{folder} holds this run already: the command goes on with it"])])

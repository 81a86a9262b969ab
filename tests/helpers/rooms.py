"""The rooms of the source and what they may import, for the test that enforces it and the page about it."""

LOWER = {"kernels", "data", "models", "weights", "training", "evaluation"}
MAY_IMPORT = {
    # Compiled arithmetic; models do not know it, whoever builds a model hands it in.
    "kernels": set[str](),
    "data": {"kernels"},
    "models": set[str](),
    "weights": {"data", "models"},
    "training": {"data", "models", "weights"},
    # Evaluators are handed to the trainer, which knows none; nor do they know it.
    "evaluation": {"data", "models", "weights"},
    # Other programs that compute a finished model: training knows none.
    "engines": {"data", "models", "weights", "evaluation"},
    "analysis": {"data", "models", "weights", "training", "evaluation"},
    "tasks": {"data", "models", "weights", "training", "evaluation", "analysis"},
    "report": {"data", "models", "weights", "training", "evaluation", "analysis", "tasks"},
    # A run on disk, the floor under every job.
    "runs": {*LOWER, "engines", "analysis", "tasks", "report"},
    "jobs": {*LOWER, "engines", "analysis", "tasks", "report", "runs"},
    "cli": {*(LOWER - {"kernels"}), "analysis", "tasks", "report", "runs", "jobs"},
}
"""The rooms, and which others each may import."""

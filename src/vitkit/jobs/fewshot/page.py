"""Put the result of a few-shot evaluation on a page."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from vitkit.analysis.study_figures import METHOD_NAMES, fewshot_plot, pretraining_plot
from vitkit.data.listing import pluralize
from vitkit.evaluation.fewshot_scores import FewShotScore
from vitkit.jobs.fewshot.result import FewShot, FewShotModel, pretraining_curves, remarks
from vitkit.report.template import FewShotContent, render_fewshot


def fewshot_page(found: FewShot) -> str:
    """Make the page of a result: a whole HTML document."""
    images = f"{pluralize(found.test_images, f'{found.test_split} image')} of {found.data_name}"
    curves = {model.name: model.scores for model in found.models}
    best = max(found.models, key=lambda model: model.best.mean)
    several = len(found.models) > 1
    methods = dict.fromkeys(score.method for model in found.models for score in model.scores)
    rows = [
        [METHOD_NAMES[method], *([model.name] if several else []), *map(_cell, model.of_method(method))]
        for method in methods
        for model in found.models
    ]
    return render_fewshot(
        FewShotContent(
            title=f"Few-shot accuracy on {found.data_name}",
            answer=_answer(best, images, several),
            protocol=(
                f"{len(found.class_names):,} classes; each number of shots was drawn "
                f"{pluralize(found.seeds, 'time')}. Guessing is right for {found.chance:.1%}, always naming "
                f"the most frequent class for {found.majority:.1%}."
            ),
            remarks=list(remarks(found)),
            figure=fewshot_plot(curves, images, found.chance, found.seeds),
            alt="; ".join(_in_words(model) for model in found.models),
            by_images=pretraining_figure(found),
            by_images_alt="; ".join(
                f"{model.name}, pre-trained on {images:,} images: {model.best.mean:.1%}"
                for models in pretraining_curves(found).values()
                for images, model in models
            ),
            headings=["method", *(["checkpoint"] if several else []), *map(_shots, found.shots)],
            words=1 + several,
            rows=rows,
            names=[
                f"{model.name} ({model.best.method}, {_shots(model.best.shots)})" for model in found.models
            ],
            classes=_classes(found),
            notes=found.notes,
        )
    )


def pretraining_figure(found: FewShot) -> Figure | None:
    """Draw accuracy against the images of the pre-training; None where fewer than two sizes are known."""
    curves = pretraining_curves(found)
    if not curves:
        return None
    method = found.models[0].scores[0].method  # ridge is the first, unless it was left out
    scores = {
        name: [(images, model.of_method(method)) for images, model in models]
        for name, models in curves.items()
    }
    tested = f"{pluralize(found.test_images, f'{found.test_split} image')} of {found.data_name}"
    return pretraining_plot(scores, tested, method, found.chance, found.seeds)


def _answer(best: FewShotModel, images: str, several: bool) -> str:
    score = best.best
    shown, interval = score.shown_interval, ""
    if shown is not None:
        interval = f" (95% interval of the mean over draws: {shown[0]:.1%} to {shown[1]:.1%})"
    which = f"The best of the checkpoints is {best.name}: with" if several else "With"
    return (
        f"{which} {pluralize(score.shots, 'image')} of each class, {score.method} on frozen features is "
        f"right on {score.mean:.1%} of {images}{interval}."
    )


def _shots(count: int) -> str:
    return pluralize(count, "shot")


def _cell(score: FewShotScore) -> str:
    deviation = "" if score.deviation is None else f" ± {100 * score.deviation:.1f}"
    shown = score.shown_interval
    interval = "" if shown is None else f" ({100 * shown[0]:.1f} – {100 * shown[1]:.1f})"
    return f"{score.mean:.1%}{deviation}{interval}"


def _in_words(model: FewShotModel) -> str:
    best = model.best
    return f"{model.name}: {best.mean:.1%} with {_shots(best.shots)} by {best.method}"


def _classes(found: FewShot) -> Sequence[Sequence[str]]:
    """Make a row for each class, the hardest for the first checkpoint first."""
    shares = [model.best.class_accuracy for model in found.models]
    order = sorted(
        range(len(found.class_names)), key=lambda i: 2.0 if shares[0][i] is None else float(shares[0][i] or 0)
    )
    return [
        [found.class_names[i], *("–" if one[i] is None else f"{one[i]:.1%}" for one in shares)] for i in order
    ]

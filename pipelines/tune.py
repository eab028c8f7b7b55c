"""Search hyperparameters with Optuna; what is found is written to a file that `train` uses and shows.

Trials are cross-validated within tune.folds (tune.trained_on: tune_folds), so no label of another fold takes part in the
choice, and the rows of the other folds give an honest score. Scoring trials on one fold while training them on all others
is not enough: a value that by chance predicts fold 0 from fold 1 also predicts fold 1 from fold 0.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from competition.artifacts.dependencies import (
    folds_used_in_tuning,
    training_parts,
    tuning_dependencies,
    tuning_result_path,
)
from competition.artifacts.manifest import digest_of, write_json
from competition.data.prepared import load_prepared
from competition.training.tuning import Values, search
from pipelines.backend import start_backend
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job, display_path, image_cache, selected_members


def run(job: Job) -> None:
    """data/ -> tune/<member>/best.json, beside it the study"""
    tune = job.params.tune
    if tune.trials == 0:
        job.echo("tune: not asked for (tune.trials is 0)")
        return
    job.require(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    for name in selected_members(job):
        if job.params.members[name].teacher:
            continue  # a pupil takes the values of its recipe: its teachers are trained only after tuning
        if tune.members and name not in tune.members:
            continue
        depends = tuning_dependencies(prepared, job.params, name)
        best = tuning_result_path(job.work, name)
        job.cached(f"tune {name}", best.with_name("manifest.json"), depends, partial(tune_member, job, name, depends))


def tune_member(job: Job, name: str, depends: Mapping[str, Any]) -> tuple[Iterable[Path], Mapping[str, Any]]:
    start_backend(job)
    from competition.training.device import open_device
    from competition.training.loop import Diverged
    from competition.training.trainer import Trainer, load_images, restricted_to_folds

    params, prepared, member = job.params, load_prepared(job.path("data")), job.params.members[name]
    best = tuning_result_path(job.work, name)
    with progress_bar(None, f"tune {name}: reading images") as bar:
        images = load_images(
            prepared, training_parts(member), member.image_size, params.prepare.fit, image_cache(job), bar.update_to
        )
    images = restricted_to_folds(images, folds_used_in_tuning(params))
    competition = prepared.competition
    device = open_device(params.device, job.path("cache", "compiled"))
    trainer = Trainer(member, images, len(competition.classes), competition.metric, device, params.predict.batch)
    sign = trainer.metric.sign

    def evaluate(values: Values, report: Callable[[float, int], bool]) -> float:
        import optuna

        train = replace(member.train, **values)
        scores: list[float] = []
        for fold in params.tune.folds:
            try:
                trained = trainer.train(fold, train, None, lambda *_: None, lambda: False, watch=False)
            except Diverged as error:
                raise ArithmeticError(str(error)) from None
            scores.append(sign * trainer.kept_score(fold, trained))  # as its fold model will be scored
            if report(sum(scores) / len(scores), len(scores)) and fold != params.tune.folds[-1]:
                raise optuna.TrialPruned
        return sum(scores) / len(scores)

    with progress_bar(params.tune.trials, f"tune {name}") as bar:
        values, score, done = search(
            params.tune.search,
            params.tune.trials,
            params.tune.seed,
            digest_of({key: value for key, value in depends.items() if key != "trials"}),  # more trials go on, not anew
            best.with_name("study.log"),
            evaluate,
            bar.update_to,
        )
    found = {"values": values, "score": sign * score, "trials": done, "folds": folds_used_in_tuning(params)}
    write_json(best, found)
    told = ", ".join(f"{key} {value:.3g}" for key, value in values.items())
    job.echo(
        f"tune {name}: {told} ({competition.metric} {sign * score:.4f} on fold {list(params.tune.folds)}, "
        f"best of {done} trials; {display_path(best)})"
    )
    return [best], found


if __name__ == "__main__":
    main("tune")

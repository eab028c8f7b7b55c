"""Search hyperparameters with Optuna; the best values are written to a file that `train` uses and shows.

Trials are cross-validated within tune.folds (tune.trained_on: tune_folds), so no label of another fold takes part in the
choice, and the rows of the other folds give an honest score. Scoring trials on one fold while training them on all others
is not enough: a value that by chance predicts fold 0 from fold 1 also predicts fold 1 from fold 0.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from competition.artifacts.manifest import atomic_write, digest_of, write_json
from competition.artifacts.studies import (
    folds_used_in_tuning,
    smaller_study,
    tuning_dependencies,
    tuning_result_path,
)
from competition.data.prepared import Prepared
from competition.training.tuning import Values, search
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job, display_path, selected_members
from pipelines.trainer import open_trainer


def run(job: Job) -> None:
    """data/ -> tune/<member>/<digest>/best.json, beside it the study"""
    tune = job.params.tune
    if tune.trials == 0:
        job.echo("tune: not asked for (tune.trials is 0)")
        return
    prepared = job.prepared()
    for name in selected_members(job):
        if job.params.members[name].teacher:
            continue  # a student uses the values of its recipe: its teachers are trained only after tuning
        if tune.members and name not in tune.members:
            continue
        depends = tuning_dependencies(prepared, job.params, name)
        manifest = tuning_result_path(job.work, name, depends).with_name("manifest.json")
        job.cached(f"tune {name}", manifest, depends, partial(tune_member, job, prepared, name, depends))


def tune_member(
    job: Job, prepared: Prepared, name: str, depends: dict[str, Any]
) -> tuple[Iterable[Path], Mapping[str, Any]]:
    """Run the missing trials of one member's study and write its best.json."""
    tune, member, best = job.params.tune, job.params.members[name], tuning_result_path(job.work, name, depends)
    journal = best.with_name("study.log")
    if not journal.exists() and (smaller := smaller_study(best, depends)):
        with atomic_write(journal) as temporary:  # more trials continue the same study
            shutil.copyfile(smaller, temporary)
    folds = folds_used_in_tuning(job.params)

    def restrict(images: Any) -> Any:
        from competition.training.trainer import restricted_to_folds

        return restricted_to_folds(images, folds)

    trainer = open_trainer(job, prepared, member, f"tune {name}", select=restrict)
    from competition.training.loop import Diverged

    sign = trainer.metric.sign

    def evaluate(values: Values, report: Callable[[float, int], bool]) -> float:
        import optuna

        train = replace(member.train, **values)
        scores: list[float] = []
        for fold in tune.folds:
            try:
                trained = trainer.train(fold, train, None, lambda *_: None, lambda: False, watch=False)
            except Diverged as error:
                raise ArithmeticError(str(error)) from None
            scores.append(sign * trainer.kept_score(fold, trained))  # the same score that its fold model will get
            if report(sum(scores) / len(scores), len(scores)) and fold != tune.folds[-1]:
                raise optuna.TrialPruned
        return sum(scores) / len(scores)

    with progress_bar(tune.trials, f"tune {name}") as bar:
        values, score, trials = search(
            tune.search,
            tune.trials,
            tune.seed,
            digest_of({key: value for key, value in depends.items() if key != "trials"}),
            journal,
            evaluate,
            bar.update_to,
        )
    result = {"values": values, "score": sign * score, "trials": trials, "folds": folds}
    result |= {"metric": prepared.competition.metric, "finished": datetime.now(UTC).isoformat()}
    write_json(best, result)
    best_values = ", ".join(f"{key} {value:.3g}" for key, value in values.items())
    job.echo(
        f"tune {name}: {best_values} ({prepared.competition.metric} {sign * score:.4f} on fold {list(tune.folds)}, "
        f"best of {trials} trials; {display_path(best)})"
    )
    return [best], result


if __name__ == "__main__":
    main("tune")

"""Train one member with several seeds and nothing else changed: a smaller change of its score may be chance."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from competition.config.errors import UserError
from competition.config.params import Member
from competition.ensemble.compare import seed_noise
from competition.ensemble.significance import NORMAL_95
from competition.ensemble.stored_predictions import ViewPredictions, concatenate_folds
from competition.files.manifest import write_json
from competition.workspace.dependencies import fold_manifest_path, fold_model
from competition.workspace.runs import run_with
from competition.workspace.scores import seed_study_path, trivial_text
from competition.workspace.studies import tuned_member
from pipelines.execution.open_trainer import open_trainer, start_device
from pipelines.execution.selection import selected_members
from pipelines.terminal.job import Computed, Job
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar


def run(job: Job) -> None:
    """data/ -> noise/<member>/<digest>.json; out-of-fold predictions of each seed under noise/<member>/<run>/"""
    if not job.options.member or job.options.seeds < 2:
        raise UserError("Expected one member and at least two seeds, for example: make noise MEMBER=cnn SEEDS=3")
    (name,) = selected_members(job)
    prepared = job.prepared
    member = tuned_member(job.workspace, name)
    if member.teacher:
        teachers = ", ".join(member.teacher)
        raise UserError(f"{name} learns from {teachers}; measure the noise of a member without teachers")
    seeds = range(member.train.seed, member.train.seed + job.options.seeds)
    runs = [predictions_of_seed(job, name, member, seed) for seed in seeds]
    ids, metric = runs[0].ids, prepared.metric
    labels = prepared.competition.targets.of(prepared.part("train").set_index("id")["label"].loc[ids].to_numpy())
    probs = [predictions.at(ids).view("identity") for predictions in runs]
    outputs = [metric.output_of(p) for p in probs]
    noise = seed_noise(labels, outputs, metric, len(prepared.competition.classes))
    path = seed_study_path(job.workspace, name, member)
    write_json(path, noise)
    scores = ", ".join(f"{metric.display(score):.4f}" for score in noise.scores)
    limit = NORMAL_95 * np.sqrt(2) * noise.spread
    meaning = f"a score difference below about {limit:.4f} may be due to the seed"
    meaning += " (two seeds differ by more in 5 % of cases)"
    if not noise.changed and member.head is not None and member.head.kind in ("linear", "neighbours"):
        meaning = f"fitting a {member.head.kind} head has no randomness; the seed only draws the rows that choose its strength"
    job.echo(
        f"noise {name}: {metric.name} of {len(runs)} seeds {scores}: spread {noise.spread:.4f}; "
        f"two seeds differ on {noise.changed:.1%} of {'labels' if metric.target == 'multi' else 'rows'}; "
        f"{trivial_text(prepared, score=metric.display(noise.mean))}",
        f"noise {name}: {meaning}; from now on `make blend`, `make list-blends` and `make compare-blends` count this "
        f"spread: {display_path(path)}",
    )


def predictions_of_seed(job: Job, name: str, member: Member, seed: int) -> ViewPredictions:
    """Out-of-fold predictions of the member trained with `seed`; trained unless they are current."""
    member = replace(member, train=replace(member.train, seed=seed), seeds=1)
    run = run_with(job.workspace, name, member)
    folds = range(job.params.prepare.folds)
    if all(fold_model(run, fold).is_current for fold in folds) and not job.options.force:
        job.echo(f"noise {name} seed {seed}: current, run {run.label}")
        paths = [fold_manifest_path(run, fold).with_name("oof.npz") for fold in folds]
        return concatenate_folds([ViewPredictions.load(path) for path in paths])
    folder = job.path("noise", name, run.folder.name)
    make = partial(train_seed, job, member, f"noise {name} seed {seed}")
    job.cached(f"noise {name} seed {seed}", folder / "manifest.json", run.depends, make)
    return ViewPredictions.load(folder / "oof.npz")


def train_seed(job: Job, member: Member, title: str, folder: Path) -> Computed:
    """Train all fold models of the member and write their out-of-fold predictions to folder/oof.npz."""
    trainer = open_trainer(job, member, title, start_device(job))
    fold_predictions = []
    with Bar(job.params.prepare.folds, title, "fold models") as bar:
        for fold in range(job.params.prepare.folds):
            trainer.train_to_end(fold, member.train, score_epochs=False)
            fold_predictions.append(trainer.held_out(fold))
            bar.update()
    concatenate_folds(fold_predictions).save(folder / "oof.npz")
    return [folder / "oof.npz"], {}

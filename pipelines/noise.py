"""Train one member with several seeds and nothing else changed: what a gain must exceed to be more than luck."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from competition.artifacts.dependencies import fold_model_dependencies, member_with_tuned_values, training_parts
from competition.artifacts.ensemble_inputs import seed_study_digest, seed_study_path
from competition.artifacts.manifest import to_plain, write_json
from competition.config.errors import UserError
from competition.data.prepared import load_prepared
from competition.ensemble.compare import seed_noise
from competition.ensemble.metrics import metric_named
from competition.ensemble.predictions import ViewPredictions, concatenate_folds
from pipelines.backend import start_backend
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job, display_path, image_cache, selected_members


def run(job: Job) -> None:
    """data/ -> noise/<member>.json; the fold models of other seeds under noise/<member>/seed<n>/"""
    job.require(job.path("data", "manifest.json"), "download")
    if not job.options.member or job.options.seeds < 2:
        raise UserError("make noise MEMBER=cnn SEEDS=3: one member and at least two seeds were expected")
    (name,) = selected_members(job)
    prepared, classes = load_prepared(job.path("data")), len(load_prepared(job.path("data")).competition.classes)
    first = member_with_tuned_values(job.work, job.params, name, job.overrides)[0]
    if first.teacher:
        raise UserError(
            f"{name} learns from {', '.join(first.teacher)}; measure the noise of a member without teachers"
        )
    said = []
    for seed in range(first.train.seed, first.train.seed + job.options.seeds):
        member = replace(first, train=replace(first.train, seed=seed))
        folder = job.path("noise", name, f"seed{seed}")
        depends = [
            fold_model_dependencies(job.work, prepared, job.params, member, fold)
            for fold in range(job.params.prepare.folds)
        ]
        job.cached(
            f"noise {name} seed {seed}",
            folder / "manifest.json",
            {"folds": depends},
            partial(one_seed, job, member, folder),
        )
        said.append(ViewPredictions.load(folder / "oof.npz"))
    ids, metric = said[0].ids, metric_named(prepared.competition.metric)
    labels = prepared.part("train").set_index("id")["label"].loc[ids].to_numpy()
    outputs = [one.at(ids).view("identity") for one in said]
    noise = seed_noise(labels, [p.argmax(1) for p in outputs] if metric.from_counts else outputs, metric, classes)
    path = seed_study_path(job.work, name)
    write_json(path, {"of": seed_study_digest(prepared, job.params, first), **to_plain(noise)})
    told = ", ".join(f"{metric.display(score):.4f}" for score in noise.scores)
    job.echo(
        f"noise {name}: {metric.name} of {len(said)} seeds {told}: spread {noise.spread:.4f}; "
        f"two seeds differ on {noise.changed:.1%} of rows"
    )
    job.echo(
        f"noise {name}: a change of this member counts from about {np.sqrt(2) * noise.spread:.4f} on; blend, table and "
        f"compare judge by it: {display_path(path)}"
    )


def one_seed(job: Job, member: Any, folder: Path) -> tuple[Iterable[Path], Mapping[str, Any]]:
    start_backend(job)
    from competition.training.device import open_device
    from competition.training.trainer import Trainer, load_images

    prepared, params = load_prepared(job.path("data")), job.params
    competition = prepared.competition
    with progress_bar(params.prepare.folds, folder.name) as bar:
        images = load_images(
            prepared, training_parts(member), member.image_size, params.prepare.fit, image_cache(job), lambda *_: None
        )
        trainer = Trainer(
            member,
            images,
            len(competition.classes),
            competition.metric,
            open_device(params.device),
            params.predict.batch,
        )
        parts = []
        for fold in range(params.prepare.folds):
            trainer.train(fold, member.train, None, lambda *_: None, lambda: False, watch=False)
            parts.append(trainer.held_out(fold))
            bar.update()
    concatenate_folds(parts).save(folder / "oof.npz")
    return [folder / "oof.npz"], {}


if __name__ == "__main__":
    main("noise")

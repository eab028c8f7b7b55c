"""Choose views, temperatures, weights and decision rule on out-of-fold rows, score the choice honestly, write the submission."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from competition.data.prepared import Prepared, load_prepared
from competition.ensemble.blend import BlendSettings
from competition.ensemble.bootstrap import score_with_error
from competition.ensemble.chain import ChainSettings, align, apply_chain
from competition.ensemble.decision import DecisionSettings
from competition.ensemble.honest import Honest, HonestSettings, honest_chain
from competition.ensemble.metrics import Metric, metric_named
from competition.ensemble.policy import PolicySettings
from competition.ensemble.predictions import Predictions, ViewPredictions, join, mean_over_folds
from competition.errors import Refusal
from competition.lineage import fold_views
from competition.manifest import Manifest, digest_of, read_manifest, write_json
from competition.submission import format, ledger
from pipelines.stage import Job, add_partial, git_commit, main, progress_bar, shown


def run(job: Job) -> None:
    """members/*/fold*/views/ -> blend/: chain.json, scores.json, test.npz; submissions/<digest>.csv, ledger.jsonl"""
    job.needs(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    made = predictions_of(job, prepared)
    params = job.params
    depends = {
        "predictions": {name: {fold: m.files for fold, m in folds.items()} for name, folds in made.items()},
        "data": prepared.digest,
        **{block: getattr(params, block) for block in ("policy", "blend", "decision", "honest")},
    }
    sealed = job.piece("blend", job.path("blend", "manifest.json"), depends, lambda: choose(job, prepared, made))
    submission = job.submissions / sealed.result["file"]
    if not submission.exists():  # the folder of submissions is the user's: a file taken away comes back
        shutil.copyfile(job.path("blend", "submission.csv"), submission)
    job.say(f"submission: {shown(submission)}")


def predictions_of(job: Job, prepared: Prepared) -> dict[str, dict[int, Manifest]]:
    """member -> fold -> manifest of its views. Folds that lack are refused, or left out where that is allowed."""
    folds = range(job.params.prepare.folds)
    found = {
        name: {fold: made for fold in folds if (made := read_manifest(fold_views(job.work, name, fold)))}
        for name in job.params.members
    }
    missing = [f"{name} fold {fold}" for name in found for fold in folds if fold not in found[name]]
    stale = [f"{name} fold {fold}" for name in found for fold, m in found[name].items() if m.depends["data"] != prepared.digest]
    if stale or (missing and not job.options.allow_partial):
        raise Refusal(f"predictions of {', '.join((stale or missing)[:5])} are missing or of other data; `make train predict` makes them")
    return {name: folds for name, folds in found.items() if folds}


def choose(job: Job, prepared: Prepared, made: Mapping[str, Mapping[int, Manifest]]) -> tuple[Iterable[Path], Mapping[str, Any]]:
    params, competition = job.params, prepared.competition
    train, test = prepared.part("train"), prepared.part("test")
    shared = sorted(set.intersection(*(set(folds) for folds in made.values())))
    if len(shared) < 2:
        raise Refusal(f"an honest score needs two folds that every member has predicted, {len(shared)} were found; train more folds")
    train = train[train["fold"].isin(shared)]
    ids, labels, folds = train["id"].to_numpy(str), train["label"].to_numpy(), train["fold"].to_numpy()
    oof = align({name: join(load(job, name, shared, "oof")) for name in made}, ids)
    tests = align({name: mean_over_folds(load(job, name, made[name], "test")) for name in made}, test["id"].to_numpy(str))
    settings = ChainSettings(
        competition.metric,
        PolicySettings(**asdict(params.policy)),
        BlendSettings(**asdict(params.blend)),
        DecisionSettings(**asdict(params.decision)),
    )
    honest = HonestSettings(**asdict(params.honest))
    with progress_bar(None, "blend: choosing") as bar:
        found = honest_chain(oof, labels, folds, settings, honest, progress=bar.update_to)
    metric = metric_named(competition.metric)
    singles = {name: score_with_error(labels, _output(metric, views), metric, len(competition.classes), *asdict(honest).values()) for name, views in oof.items()}
    probs, decided = apply_chain(found.chain, tests)
    folder = job.path("blend")
    found.chain.save(folder / "chain.json")
    Predictions(test["id"].to_numpy(str), probs).save(folder / "test.npz")
    Predictions(ids, found.cross_fitted.probs).save(folder / "honest_oof.npz")
    predictions = decided if competition.predicts == "label" else probs
    digest = format.write(test["id"].to_numpy(str), predictions, competition, prepared.sample, folder / "submission.csv")
    partial = "" if len(shared) == params.prepare.folds else f"{len(shared)}of{params.prepare.folds}"
    file = f"{digest[:12]}{f'-partial{partial}' if partial else ''}.csv"
    job.submissions.mkdir(exist_ok=True)
    shutil.copyfile(folder / "submission.csv", job.submissions / file)
    scores = scores_of(found, metric, singles)
    write_json(folder / "scores.json", scores)
    ledger.append(job.submissions / "ledger.jsonl", entry(job, prepared, found, metric, digest, file, partial, (len(ids), len(test))))
    explain(job, found, metric, scores)
    files = ("chain.json", "scores.json", "test.npz", "honest_oof.npz", "submission.csv")
    return [folder / name for name in files], {"file": file, "submission": digest, **scores}


def load(job: Job, name: str, folds: Iterable[int], part: str) -> list[ViewPredictions]:
    return [ViewPredictions.load(fold_views(job.work, name, fold).with_name(f"{part}.npz")) for fold in folds]


def _output(metric: Metric, views: ViewPredictions) -> np.ndarray:
    probs = views.view(views.views[0])
    return probs.argmax(1) if metric.of_tally else probs


def scores_of(found: Honest, metric: Metric, singles: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "metric": metric.name,
        "members": {name: {"score": metric.shown(s.value), "standard_error": s.error} for name, s in singles.items()},
        "chosen_on": metric.shown(found.chosen_on),
        "honest": metric.shown(found.honest.value),
        "standard_error": found.honest.error,
        "over_equal": found.over_equal,
        "over_best": found.over_best,
    }


def entry(
    job: Job, prepared: Prepared, found: Honest, metric: Metric, digest: str, file: str, partial: str, rows: tuple[int, int]
) -> ledger.Entry:
    chain = found.chain
    return ledger.Entry(
        digest=digest,
        file=file,
        competition=prepared.competition.name,
        members=tuple(chain.blend.weights),
        weights=tuple(round(float(w), 4) for w in chain.blend.weights.values()),
        views=tuple(dict.fromkeys(view for policy in chain.policies.values() for view in policy)),
        params_digest=digest_of(job.params),
        git_commit=git_commit(),
        metric=metric.name,
        oof_score=metric.shown(found.chosen_on),
        honest_score=metric.shown(found.honest.value),
        standard_error=found.honest.error,
        oof_rows=rows[0],
        test_rows=rows[1],
        partial=partial,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def explain(job: Job, found: Honest, metric: Metric, scores: Mapping[str, Any]) -> None:
    chain = found.chain
    job.say(f"\nblend: {metric.name} on out-of-fold rows")
    for name, single in scores["members"].items():
        weight, policy = chain.blend.weights.get(name, 0.0), chain.policies[name]
        views = ", ".join(f"{view} {share:.2f}" for view, share in policy.items())
        job.say(f"  {name:<16} {single['score']:.4f} ± {single['standard_error']:.4f}   weight {weight:.2f}, views: {views}")
    job.say(f"  {'blend':<16} {scores['chosen_on']:.4f}            on the rows it was chosen on ({chain.blend.method}, {chain.decision.rule})")
    job.say(f"  {'honest':<16} {scores['honest']:.4f} ± {scores['standard_error']:.4f}   on rows that took no part in the choice")
    for against, difference in (("equal weights", found.over_equal), ("the best member", found.over_best)):
        verdict = "a gain" if difference.is_real and difference.value > 0 else "a loss" if difference.is_real else "noise"
        job.say(f"  over {against:<15} {difference.value:+.4f} ± {difference.error:.4f}: {verdict}")


if __name__ == "__main__":
    main(run, add_partial)

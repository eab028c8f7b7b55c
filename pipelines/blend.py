"""Choose views, temperatures, weights and decision rule on out-of-fold rows, score the choice honestly, write the submission."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from competition.artifacts.dependencies import tuning_trials
from competition.artifacts.ensemble_inputs import (
    EnsembleInputs,
    load_predictions,
    model_digests,
    prediction_sources,
    seed_spreads,
    view_seconds,
)
from competition.artifacts.manifest import digest_of, write_json
from competition.data.caveats import digests, load_caveats
from competition.data.prepared import Prepared, load_prepared
from competition.ensemble.bootstrap import Score, score_with_error
from competition.ensemble.chain import Chain, ChainMembers, apply_chain
from competition.ensemble.diversity import Diversity, diversity
from competition.ensemble.honest import HonestResult, honest_chain
from competition.ensemble.leaderboard import expected_scores, interval
from competition.ensemble.metrics import Metric, metric_named
from competition.ensemble.outputs import plain_view
from competition.ensemble.policy import refused_views
from competition.ensemble.predictions import ViewPredictions, save_scores
from competition.ensemble.rare_classes import small_class_warning
from competition.ensemble.settings import chain_settings, honest_settings
from competition.report.caveats import reliance, with_caveats
from competition.report.repeated_choices import choices_lines
from competition.report.terminal import blend_lines, diversity_lines, seeds_line, views_lines
from competition.submission import format, ledger
from pipelines.cli import main
from pipelines.progress import progress_bar
from pipelines.runner import Job, display_path
from pipelines.versions import git_commit


def run(job: Job) -> None:
    """members/*/fold*/views/ -> blend/, kept under blends/<submission>/; submissions/<digest>.csv, ledger.jsonl"""
    job.require(job.path("data", "manifest.json"), "download")
    params, prepared = job.params, load_prepared(job.path("data"))
    have = prediction_sources(job.work, params, prepared, job.options.allow_partial)
    spreads, notes = seed_spreads(job.work, params, prepared, job.overrides)
    for note in notes:
        job.echo(f"blend: {note}")
    blocks = {block: getattr(params, block) for block in ("policy", "blend", "decision", "honest")}
    depends = {"predictions": have, "data": prepared.digest, "seeds": spreads, **blocks}
    depends["caveats"] = digests(job.path("data"))
    if params.policy.seconds_limit:  # no other choice depends on how long anything took
        depends["seconds"] = view_seconds(job.work, params, params.members)
        for name in sorted(have.keys() - depends["seconds"].keys()):
            job.echo(
                f"blend: what the views of {name} cost is not known: each counts as one second of policy.seconds_limit"
            )
    made = job.cached(
        "blend",
        job.path("blend", "manifest.json"),
        depends,
        lambda: choose(job, prepared, have, spreads, depends.get("seconds")),
    )
    submission = job.submissions / made.result["file"]
    if not submission.exists():  # the folder of submissions is the user's: a file taken away comes back
        shutil.copyfile(job.path("blend", "submission.csv"), submission)
    job.echo(f"submission: {display_path(submission)}")
    for line in choices_lines(job.work, job.submissions, params, prepared, made.result["submission"]):
        job.echo(line)


def choose(
    job: Job,
    prepared: Prepared,
    have: Mapping[str, Any],
    spreads: Mapping[str, float],
    seconds: Mapping[str, Mapping[str, float]] | None,
) -> tuple[Iterable[Path], Mapping[str, Any]]:
    """spreads, seconds: of gather.seed_spreads and gather.view_seconds."""
    params, metric = job.params, metric_named(prepared.competition.metric)
    rows = load_predictions(job.work, params, prepared, have)
    for note in rows.notes:
        job.echo(f"blend: {note}")
    settings, more = chain_settings(params, metric.name), honest_settings(params)
    with progress_bar(None, "blend: choosing") as bar:
        found = honest_chain(
            rows.oof,
            rows.labels,
            rows.folds,
            settings,
            more,
            seconds,
            bar.update_to,
            spreads,
            rows.tuned_folds,
        )
    policies = found.chain.policies
    refused = {n: refused_views(v, rows.labels, metric, settings.policy, policies[n]) for n, v in rows.oof.items()}
    mixed = ChainMembers(found.chain, rows.oof, np.flatnonzero(found.scored))
    different = diversity(mixed, rows.labels[found.scored], found.chain.blend, metric)
    scores = {
        **scores_of(job, found, metric, rows),
        "oof_digest": digest_of(sorted(zip(rows.ids.tolist(), rows.labels.tolist()))),
        "chain": found.chain.digest(),
        "models": model_digests(job.work, params, have),
        "seeds": spreads,
        "views": {name: {"effect": found.views[name], "left_out": refused[name]} for name in refused},
        "diversity": told(different),
    }
    known, output = load_caveats(job.path("data")), found.cross_fitted.output(metric)
    scores["caveats"] = reliance(known, rows, output, metric, len(prepared.competition.classes), job.params.honest.seed)
    files, digest = written(job.path("blend"), prepared, found, rows, scores)
    file = handed_over(job, prepared, found, scores, digest, partial_of(rows, params.prepare.folds))
    over = {"equal weights": found.over_equal, "the best member": found.over_best}
    lines = [
        "\nblend: " + "\n".join(with_caveats(blend_lines(metric, found.chain, scores, over), scores)),
        *seeds_line(spreads, list(rows.oof)),
        *views_lines(found.views, refused),
        *diversity_lines(different),
    ]
    lines += row_notes(found, rows)
    for line in lines:
        job.echo(line)
    return files, {"file": file, "submission": digest, **scores}


def written(
    folder: Path, prepared: Prepared, found: HonestResult, rows: EnsembleInputs, scores: Mapping[str, Any]
) -> tuple[list[Path], str]:
    """(the files of a blend, digest of its submission): what was chosen, what it scores, what it says of every row."""
    names = ("chain.json", "scores.json", "test.npz", "honest_oof.npz", "honest_oof.csv", "submission.csv")
    probs, decided = apply_chain(kept(found.chain, folder / "chain.json"), rows.test)
    write_json(folder / "scores.json", scores)
    save_scores(folder / "test.npz", rows.test_ids, probs)
    save_scores(folder / "honest_oof.npz", rows.ids, found.cross_fitted.probs)
    # scored: 1 for the rows that scores are of, 0 for those that chose hyperparameters (tuned folds).
    table = {"id": rows.ids, "label": found.cross_fitted.labels, "scored": found.scored.astype(int)}
    pd.DataFrame(table).to_csv(folder / "honest_oof.csv", index=False)
    said = decided if prepared.competition.predicts == "label" else probs
    digest = format.write(rows.test_ids, said, prepared.competition, prepared.sample, folder / "submission.csv")
    return [folder / name for name in names], digest


def handed_over(
    job: Job, prepared: Prepared, found: HonestResult, scores: Mapping[str, Any], digest: str, partial: str
) -> str:
    """The name of the submission in submissions/, noted in the ledger; the blend is kept beside later ones."""
    file, folder = f"{digest[:12]}{f'-partial{partial}' if partial else ''}.csv", job.path("blend")
    job.submissions.mkdir(exist_ok=True)
    shutil.copyfile(folder / "submission.csv", job.submissions / file)
    ledger.append(job.submissions / "ledger.jsonl", entry(job, prepared, found, scores, digest, file, partial))
    unsealed = shutil.ignore_patterns("*.lock")
    shutil.copytree(folder, job.path("blends", Path(file).stem), dirs_exist_ok=True, ignore=unsealed)
    return file


def partial_of(rows: EnsembleInputs, folds: int) -> str:
    """'' when every fold model has spoken, else how many have: 3of5."""
    spoke = len(rows.predicted_folds)
    return "" if spoke == folds else f"{spoke}of{folds}"


def kept(chain: Chain, path: Path) -> Chain:
    """The chain as its file has it, which is what test rows go through: the one that was scored, by its digest."""
    chain.save(path)
    back = Chain.load(path)
    if back.digest() != chain.digest():
        raise AssertionError(f"{path} says something else than the chain that was scored")
    return back


def told(found: Diversity) -> dict[str, Any]:
    """As JSON has it: what is not defined (the errors of a member that is never wrong) is null."""
    values = asdict(found)
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            values[name] = value.astype(object)
            values[name][~np.isfinite(value)] = None
            values[name] = values[name].tolist()
    return values


def row_notes(found: HonestResult, rows: EnsembleInputs) -> list[str]:
    """Which rows the scores are of, where they are not all rows, each by a chain that saw all other folds."""
    notes, folds = [], len(rows.predicted_folds)
    if found.is_optimistic:
        notes.append(
            "  OPTIMISTIC: rows of every fold took part in choosing the hyperparameters, so no row is left that took no part "
            "in any choice; all scores are of all rows. Tune on fewer folds (tune.folds) for honest ones"
        )
    elif rows.tuned_folds:
        notes.append(
            f"  hyperparameters were chosen on held-out rows of folds {list(rows.tuned_folds)}: "
            f"all scores are of the other {found.scored.sum():,} rows"
        )
    if found.blocks < folds:
        notes.append(
            f"  {folds} folds in {found.blocks} blocks (honest.blocks): each row is scored by a chain that saw no row of its "
            "block, hence none of its fold"
        )
    return notes


def scores_of(job: Job, found: HonestResult, metric: Metric, rows: EnsembleInputs) -> dict[str, Any]:
    """What may be quoted. Every score is of `found.scored`: rows that chose hyperparameters are left out."""
    classes, more = found.cross_fitted.probs.shape[1], (job.params.honest.resamples, job.params.honest.seed)
    at = found.scored
    output = found.cross_fitted.output(metric)
    expected = expected_scores(rows.labels[at], output[at], metric, classes, len(rows.test_ids), *more)
    return {
        "metric": metric.name,
        "members": {
            name: _shown(metric, plain_score(metric, views, rows.labels, at, more)) for name, views in rows.oof.items()
        },
        "chosen_on": metric.display(found.chosen_on),
        "honest": metric.display(found.honest.value),
        "standard_error": found.honest.error,
        "honest_rows": int(at.sum()),
        "tuned_folds": rows.tuned_folds,
        "optimistic": found.is_optimistic,  # every row chose hyperparameters
        "blocks": found.blocks,
        "equal": _shown(metric, found.equal),
        "leaderboard_band": interval(expected, len(rows.test_ids)),
        "expected": expected,
        "small_classes": small_class_warning(rows.labels[at], classes),
        "test_rows": len(rows.test_ids),
        "over_equal": found.over_equal,
        "over_best": found.over_best,
    }


def plain_score(
    metric: Metric, views: ViewPredictions, labels: np.ndarray, scored: np.ndarray, more: tuple[int, int]
) -> Score:
    """A member alone, by its plain view, on the rows of `scored` (N,) bool: nothing was chosen."""
    probs, labels = views.view(plain_view(views), np.flatnonzero(scored)), labels[scored]
    return score_with_error(labels, probs.argmax(1) if metric.from_counts else probs, metric, probs.shape[1], *more)


def _shown(metric: Metric, score: Score) -> dict[str, float]:
    return {"score": metric.display(score.value), "standard_error": score.error}


def entry(
    job: Job, prepared: Prepared, found: HonestResult, scores: Mapping[str, Any], digest: str, file: str, partial: str
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
        metric=scores["metric"],
        oof_score=scores["chosen_on"],
        honest_score=scores["honest"],
        standard_error=scores["standard_error"],
        oof_rows=scores["honest_rows"],
        test_rows=scores["test_rows"],
        partial=partial,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        oof_digest=scores["oof_digest"],
        trials=tuning_trials(job.work),
        expected=scores["expected"],
        optimistic=scores["optimistic"],
    )


if __name__ == "__main__":
    main("blend")

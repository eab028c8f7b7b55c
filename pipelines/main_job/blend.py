"""Fit views, temperatures, weights and decision rule on out-of-fold rows, score them honestly, write the submission."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from competition.config.digests import digest_of
from competition.config.errors import counted
from competition.config.secrets import without_secrets
from competition.ensemble.bootstrap import slow_metric_warning
from competition.ensemble.chain import BLEND, Chain, ChainMembers, ViewSeconds, apply_chain
from competition.ensemble.diversity import Diversity, diversity
from competition.ensemble.honest import HonestResult, fit_and_score_chain
from competition.ensemble.metrics import Metric, metric_named
from competition.ensemble.nested import OofRows
from competition.ensemble.outputs import identity_view
from competition.ensemble.policy import rejected_views
from competition.ensemble.predictions import save_scores
from competition.ensemble.settings import chain_settings
from competition.files.manifest import copy_file, sha256, write_json
from competition.prepare.caveats import digests, load_caveats
from competition.prepare.competition import needs_a_label
from competition.prepare.prepared import Prepared
from competition.report.blend_scores import diversity_json, scores_of
from competition.report.caveats import reliance, with_caveats
from competition.report.repeated_choices import choices_lines
from competition.report.stored_blends import stored_labels
from competition.report.terminal import (
    blend_lines,
    diversity_lines,
    no_better_than_trivial,
    plus_minus,
    row_notes,
    seeds_line,
    views_lines,
)
from competition.submission import format, ledger
from competition.workspace.dependencies import blend_blocks, blend_path, set_newest_blend
from competition.workspace.ensemble_inputs import (
    EnsembleInputs,
    load_predictions,
    model_digests,
    prediction_sources,
    run_labels,
    view_seconds,
)
from competition.workspace.seed_studies import seed_spreads
from competition.workspace.studies import plugins_entry, tuning_trials
from pipelines.terminal.output import display_path
from pipelines.terminal.progress import Bar
from pipelines.terminal.runner import Computed, Job
from pipelines.terminal.versions import git_commit

FILES = ("chain.json", "scores.json", "test.npz", "honest_oof.npz", "honest_oof.csv", "submission.csv")


@dataclass(frozen=True)
class BlendResult:
    """A fitted chain with its inputs and everything that is reported about it."""

    inputs: EnsembleInputs
    honest: HonestResult
    metric: Metric
    rejected_views: Mapping[str, Mapping[str, str]]  # member -> view -> reason
    diversity: Diversity
    scores: Mapping[str, Any]  # content of scores.json

    @property
    def chain(self) -> Chain:
        return self.honest.chain

    def partial(self, folds: int) -> str:
        """ "" if every one of the K folds has predictions, else how many: 3of5."""
        predicted = len(self.inputs.predicted_folds)
        return "" if predicted == folds else f"{predicted}of{folds}"


def run(job: Job) -> None:
    """predictions of the blend's runs -> blend/<name or digest>/, blends/<submission>/; submissions/<digest>.csv, ledger.jsonl"""
    params, prepared = job.params, job.prepared
    sources = prediction_sources(job.workspace, job.options.allow_partial)
    spreads, notes = seed_spreads(job.workspace)
    job.echo(*(f"blend: {note}" for note in notes))
    depends = {
        "predictions": sources,
        "data": prepared.digest,
        "competition": prepared.competition,  # the metric and the form of the submission
        "seeds": spreads,
        "blend_version": BLEND,
        **blend_blocks(params),
        "caveats": digests(job.path("data")),
    }
    depends |= plugins_entry(METRICS=(prepared.competition.metric,))
    if params.policy.seconds_limit:  # nothing else depends on inference times
        depends["seconds"] = view_seconds(job.workspace)
        for name in sorted(sources.keys() - depends["seconds"].keys()):
            job.echo(f"blend: the cost of {name}'s views is unknown: each counts as one second of policy.seconds_limit")
    path = blend_path(job.work, params.blend.name, depends)
    make = partial(create_blend, job, path.parent, sources, spreads, depends.get("seconds"))
    manifest = job.cached("blend", path, depends, make)
    set_newest_blend(path.parent)
    if len(prepared.part("test")):
        submission = job.submissions / manifest.result["file"]
        if not submission.exists():  # the user may have deleted it
            copy_submission(path.with_name("submission.csv"), submission)
        job.echo(f"submission: {display_path(submission)}; {score_text(manifest.result)}")
    else:
        job.echo(
            f"blend: {score_text(manifest.result)}; no submission is written, because there are no test images; `make report` "
            "writes the result to one page"
        )
    job.echo(*choices_lines(job.work, job.submissions, params, prepared, manifest.result["submission"]))


def score_text(scores: Mapping[str, Any]) -> str:
    """ "honest macro_f1 0.9963 ± 0.0026 on 539 rows".  scores: as in scores.json."""
    kind = "OPTIMISTIC" if scores.get("optimistic") else "honest"
    error = plus_minus(scores["standard_error"])
    text = f"{kind} {scores['metric']} {scores['honest']:.4f} {error} on {counted(scores['honest_rows'], 'row')}"
    return "; ".join([text, *no_better_than_trivial(scores)])


def create_blend(
    job: Job, folder: Path, sources: Mapping[str, Any], spreads: Mapping[str, float], seconds: ViewSeconds | None
) -> Computed:
    """Fit the blend, write its files and the submission, print the scores.  Returns the files and the manifest's result.

    sources, spreads, seconds: of `ensemble_inputs`.
    """
    result = fit(job, sources, spreads, seconds)
    files, digest = write_files(folder, job.prepared, result)
    file = write_submission(job, folder, result, digest, run_labels(sources, job.params))
    job.echo(*report_lines(result, spreads))
    return files, {"file": file, "submission": digest, **result.scores}


def fit(job: Job, sources: Mapping[str, Any], spreads: Mapping[str, float], seconds: ViewSeconds | None) -> BlendResult:
    """Load the predictions, fit the chain, score it, and analyse views and diversity."""
    params, prepared = job.params, job.prepared
    inputs = load_predictions(job.workspace, sources)
    job.echo(*(f"blend: {note}" for note in inputs.notes))
    metric = metric_named(prepared.competition.metric)
    settings, oof = chain_settings(params, metric.name, needs_a_label(prepared.competition)), inputs.oof
    first = next(iter(oof.values()))
    for warning in slow_metric_warning(metric, inputs.labels, first.view(identity_view(first))):
        job.echo(f"blend: {warning}")
    with Bar(None, "blend: fitting") as bar:
        rows = OofRows(oof, inputs.labels, inputs.folds, inputs.tuned_folds, seconds)
        honest = fit_and_score_chain(rows, settings, params.honest, bar.update_to, spreads)
    policies = honest.chain.policies
    rejected = {m: rejected_views(v, inputs.labels, metric, settings.policy, policies[m]) for m, v in oof.items()}
    members = ChainMembers(honest.chain, oof, np.flatnonzero(honest.scored))
    diverse = diversity(members, inputs.labels[honest.scored], honest.chain.blend, metric)
    output, classes = honest.cross_fitted.output(metric), len(prepared.competition.classes)
    scores = {
        **scores_of(params, honest, metric, inputs),
        "oof_digest": digest_of(sorted(zip(inputs.ids.tolist(), inputs.labels.tolist()))),
        "chain": honest.chain.digest(),
        "models": model_digests(job.workspace, sources),
        "seeds": spreads,
        "views": {m: {"effect": honest.view_effects[m], "left_out": rejected[m]} for m in rejected},
        "diversity": diversity_json(diverse),
        "caveats": reliance(load_caveats(job.path("data")), inputs, output, metric, classes, params.honest.seed),
    }
    return BlendResult(inputs, honest, metric, rejected, diverse, scores)


def write_files(folder: Path, prepared: Prepared, result: BlendResult) -> tuple[list[Path], str]:
    """Write FILES.  Returns their paths and the digest of the submission; without test images that of the blend."""
    inputs, crossed = result.inputs, result.honest.cross_fitted
    result.chain.save(folder / "chain.json")
    loaded = Chain.load(folder / "chain.json")  # test rows go through the chain of the file
    if loaded.digest() != result.chain.digest():
        raise AssertionError(f"{folder / 'chain.json'} differs from the chain that was scored")
    probs, decided = apply_chain(loaded, inputs.test)
    write_json(folder / "scores.json", result.scores)
    save_scores(folder / "test.npz", inputs.test_ids, probs)
    save_scores(folder / "honest_oof.npz", inputs.ids, crossed.probs)
    # scored: 1 for the rows that scores are computed on, 0 for rows of tuned folds.
    decided_texts = stored_labels(crossed.decided, crossed.probs, prepared.competition.targets.kind)
    table = {"id": inputs.ids, "label": decided_texts, "scored": result.honest.scored.astype(int)}
    pd.DataFrame(table).to_csv(folder / "honest_oof.csv", index=False)
    if not len(inputs.test_ids):  # cross-validation only
        (folder / "submission.csv").unlink(missing_ok=True)
        files = [folder / name for name in FILES if name != "submission.csv"]
        return files, digest_of([result.chain.digest(), sha256(folder / "honest_oof.csv")])
    output = decided if prepared.competition.predicts == "label" else probs
    digest = format.write(inputs.test_ids, output, prepared.competition, prepared.sample, folder / "submission.csv")
    return [folder / name for name in FILES], digest


def write_submission(job: Job, folder: Path, result: BlendResult, digest: str, runs: tuple[str, ...]) -> str:
    """Copy the submission to submissions/, add it to the ledger and keep the blend.  Returns the name of the file.

    Without test images there is no file; the name, which ends in -cv, is that of the blend. The ledger counts it all the
    same, because the best of several blends is optimistic with or without a submission.
    folder: of the blend.  runs: names of the runs that it mixes.
    """
    partial = result.partial(job.params.prepare.folds)
    has_test = len(result.inputs.test_ids) > 0
    file = f"{digest[:12]}{f'-partial{partial}' if partial else ''}{'.csv' if has_test else '-cv'}"
    job.submissions.mkdir(exist_ok=True)
    if has_test and (not (job.submissions / file).is_file() or sha256(job.submissions / file) != digest):
        copy_submission(folder / "submission.csv", job.submissions / file)
    ledger.append_entry_once(job.submissions / "ledger.jsonl", ledger_entry(job, result, digest, file, runs))
    keep_blend(folder, job.path("blends", Path(file).stem))
    return file


def copy_submission(source: Path, target: Path) -> None:
    """Copy atomically, so that a file in submissions/ is always complete; remove what a killed copy of it left."""
    for leftover in target.parent.glob(f".{target.name}.*"):
        leftover.unlink(missing_ok=True)
    copy_file(source, target)


def keep_blend(folder: Path, copy: Path) -> None:
    """Copy the blend behind a submission to `copy`. The first blend that made the same submission is never replaced."""
    if copy.exists():
        return
    unfinished = copy.with_name(f".{copy.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(folder, unfinished, ignore=shutil.ignore_patterns("*.lock"))
    unfinished.rename(copy)


def report_lines(result: BlendResult, spreads: Mapping[str, float]) -> list[str]:
    """The lines that the terminal shows."""
    honest, scores = result.honest, result.scores
    gains = {"the trivial baseline": scores["over_trivial"]}
    if len(scores["members"]) > 1:  # of one member alone both are the member itself
        gains |= {"equal weights": honest.over_equal, "the best member": honest.over_best}
    return [
        "\nblend: " + "\n".join(with_caveats(blend_lines(result.metric, result.chain, scores, gains), scores)),
        *seeds_line(spreads, list(result.inputs.oof)),
        *views_lines(honest.view_effects, result.rejected_views),
        *diversity_lines(result.diversity),
        *row_notes(honest, result.inputs),
    ]


def ledger_entry(job: Job, result: BlendResult, digest: str, file: str, runs: tuple[str, ...]) -> ledger.Entry:
    """The submission as one line of the ledger."""
    chain, scores = result.chain, result.scores
    return ledger.Entry(
        digest=digest,
        file=file,
        competition=job.prepared.competition.name,
        members=tuple(chain.blend.weights),
        weights=tuple(round(float(w), 4) for w in chain.blend.weights.values()),
        views=tuple(dict.fromkeys(view for policy in chain.policies.values() for view in policy)),
        params_digest=digest_of(without_secrets(job.params)),
        git_commit=git_commit(),
        metric=scores["metric"],
        oof_score=scores["chosen_on"],
        honest_score=scores["honest"],
        standard_error=scores["standard_error"],
        oof_rows=scores["honest_rows"],
        test_rows=scores["test_rows"],
        partial=result.partial(job.params.prepare.folds),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        oof_digest=scores["oof_digest"],
        trials=tuning_trials(job.work),
        expected=scores["expected"],
        optimistic=scores["optimistic"],
        runs=runs,
    )

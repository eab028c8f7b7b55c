"""Fit views, weights and decision rule on out-of-fold rows, score them honestly, write the submission."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from competition.config.digests import digest_of, to_plain
from competition.config.errors import counted
from competition.config.secrets import without_secrets
from competition.ensemble.chain import Chain, apply_chain
from competition.ensemble.compare import diversity
from competition.ensemble.external_check import (
    LEAK_UNCHECKED,
    NOT_OUT_OF_FOLD,
    doubted_members,
    doubts_of,
    doubts_of_folds,
    joined_notes,
)
from competition.ensemble.honest_score import HonestResult, fit_and_score_chain
from competition.ensemble.label_shift import adapted_to_rows, shares_sentence
from competition.ensemble.metrics import Metric
from competition.ensemble.nested_cross_fit import OofRows
from competition.ensemble.settings import chain_settings
from competition.ensemble.significance import Difference
from competition.ensemble.stored_predictions import save_scores
from competition.files.manifest import copy_file, sha256, write_json
from competition.prepare.prepared import CAVEAT_FILES, Prepared, load_caveats
from competition.report.caveats import (
    has_shift,
    series_and_shift_effects,
    series_sentences,
    shift_sentences,
    without_expectation,
)
from competition.report.repeated_choices import choices_lines
from competition.report.scores_json import scores_of
from competition.report.stored_blends import blend_of, blend_text, blends_of, stored_labels
from competition.report.terminal import (
    SUMMARY_COLUMNS,
    Scores,
    gain,
    gain_of_equal_weights,
    how,
    no_better_than_trivial,
    seeds_line,
    summary_rows,
    with_error,
)
from competition.submission import ledger, submission_csv
from competition.workspace.current_blend import set_newest_blend
from competition.workspace.dependencies import blend_blocks
from competition.workspace.ensemble_inputs import (
    EnsembleInputs,
    blend_dependencies,
    left_out_notes,
    load_predictions,
    model_digests,
    prediction_sources,
)
from competition.workspace.scores import seed_spreads
from competition.workspace.studies import DIGITS
from competition.workspace.tracking import Outcome, Subject
from pipelines.terminal.job import Computed, Job, track
from pipelines.terminal.output import Bold, display_path, table_lines
from pipelines.terminal.progress import Bar
from pipelines.terminal.versions import git_commit

FILES = ("chain.json", "scores.json", "test.npz", "honest_oof.npz", "honest_oof.csv", "submission.csv")


@dataclass(frozen=True)
class BlendResult:
    """A fitted chain with its inputs and everything that is reported about it."""

    inputs: EnsembleInputs
    honest: HonestResult
    scores: Mapping[str, Any]  # content of scores.json


def run(job: Job) -> None:
    """predictions of the blend's runs -> blend/<name or digest>/, blends/<submission>/; submissions/<digest>.csv, ledger.jsonl"""
    params, prepared = job.params, job.prepared
    sources = prediction_sources(job.workspace, job.options.allow_partial)
    spreads, notes = seed_spreads(job.workspace)
    job.echo(*(f"blend: {note}" for note in notes))
    caveats = {name: sha256(path) for name in CAVEAT_FILES if (path := prepared.folder / name).is_file()}
    depends = {**blend_dependencies(job.workspace, sources, spreads), "caveats": caveats}
    # A name comes before the digest: no blend replaces another.
    folder = "-".join(filter(None, [params.blend.name, digest_of(depends)[:DIGITS]]))
    path = job.path("blend", folder, "manifest.json")
    make = partial(create_blend, job, sources, spreads)
    manifest = job.cached("blend", path, depends, make)
    set_newest_blend(path.parent)
    scores, chain = to_plain(manifest.result), Chain.load(path.with_name("chain.json"))
    ledger.confirm_entry(job.submissions / "ledger.jsonl", prepared.competition.name, scores)
    left_out = left_out_notes(job.workspace, sources)
    job.echo(*(f"blend: {note}" for note in joined_notes([*left_out, *scores.get("notes", ())])))
    columns = ("member", scores["metric"], *SUMMARY_COLUMNS)
    job.echo("", *table_lines(columns, summary_rows(scores, chain, prepared.metric)), "")
    if job.options.verbose:
        job.echo(*detail_lines(scores, chain, prepared.metric))
    job.echo(Bold(conclusion(scores)), *caution_lines(scores))
    job.echo(*choices_lines(job.submissions, params, scores))
    if len(prepared.part("test")):
        if not prepared.competition.scores_its_submissions:
            name, metric = prepared.competition.name, prepared.competition.metric
            labels = f"submissions of {name} are labels: it compares blends, and scores no submission"
            job.echo(f"{metric} scores probabilities, and {labels}")
        submission = job.submissions / scores["file"]
        if not submission.exists():
            copy_file(path.with_name("submission.csv"), submission)
        alike = [blend_text(folder) for folder in blends_of(job.path("blends"), scores["file"])]
        shared = f", the same file of {len(alike)} blends: {', '.join(alike)}" if len(alike) > 1 else ""
        job.echo(f"submission: {display_path(submission)}{shared}")
    else:
        instead = "`make predict-folder FOLDER=new_photos` predicts others"
        job.echo(f"blend: no submission is written, because there are no test images; {instead}")
    recorded = ledger.of_competition(ledger.read(job.submissions / "ledger.jsonl"), prepared.competition.name)
    own_entry = ledger.entry_of_blend(recorded.entries, scores)
    is_whole = own_entry is not None and not own_entry.partial  # partial ones may have no row in common
    others = [entry for entry in recorded.entries if entry.digest != scores["submission"] and not entry.partial]
    if is_whole and others and (other := blend_of(job.path("blends"), others[-1])) is not None:
        own = kept_as(job.path("blends", Path(scores["file"]).stem), path.parent)
        job.echo(f"another blend: `make compare-blends A={other.name} B={own.name}` compares them")


def conclusion(scores: Scores) -> str:
    """The honest score with its rows, the trivial baseline and what to expect on test rows, in one sentence."""
    kind, rows = "OPTIMISTIC" if scores.get("optimistic") else "honest", counted(scores["honest_rows"], "row")
    kind = "DOUBTED" if doubts_of(scores) else kind
    if scores.get("tuned_folds") and not scores.get("optimistic"):
        rows = f"{scores['honest_rows']:,} of {counted(scores['rows'], 'row')} (the others chose hyperparameters)"
    trivial, useless = scores["trivial"], no_better_than_trivial(scores)
    honest = with_error(scores["honest"], scores["standard_error"], scores["metric"])
    baseline = with_error(trivial["score"], trivial["standard_error"], scores["metric"])
    parts = [f"{kind} {scores['metric']} {honest} on {rows}"]
    parts += [f"WARNING {words}" for words in useless] or [f"the trivial baseline scores {baseline}"]
    if doubted := doubted_members(scores, NOT_OUT_OF_FOLD):
        parts.append(f"NOT HONEST if the models of {', '.join(doubted)} were trained on these rows, as it seems")
    parts += doubts_of_folds(scores)
    if unchecked := doubted_members(scores, LEAK_UNCHECKED):
        parts.append(f"leaks of {', '.join(unchecked)} not checked")
    if doubts_of(scores) and scores["test_rows"]:
        parts.append(f"NO EXPECTATION for test rows: {without_expectation(scores)}")
    elif scores["leaderboard_band"] and not has_shift(scores):
        low, high = scores["leaderboard_band"]
        parts.append(f"expected on {counted(scores['test_rows'], 'test row')}: {low:.4f} to {high:.4f} (95 %)")
    return "; ".join(parts)


def caution_lines(scores: Scores) -> list[str]:
    """What limits the meaning of the score: few rows of a class, series across folds, shifted test rows, no unused row."""
    lines = [*scores.get("small_classes", ()), *(shift_sentences(scores) if has_shift(scores) else ())]
    if (better := gain_of_equal_weights(scores)) is not None:
        use = 'SET="blend.methods=[equal]" uses them, chosen afterwards'
        lines.append(f"equal weights score {gain(better)}, on the same rows: {use}")
    if len(scores["members"]) > 1 and (over := Difference(**scores["over_best"])).value < 0:
        size = "by more than noise" if over.is_significant else "but not by more than noise"
        lines.append(
            f"the best member scores more on these rows, {size}; the blend is used, because a choice between the two by these rows "
            'would be optimistic (SET="blend.methods=[best]" uses the member)'
        )
    lines += [*series_sentences(scores), *([scores["class_shares"]] if "class_shares" in scores else ())]
    if scores.get("optimistic"):
        lines.append(
            "OPTIMISTIC: rows of every fold took part in choosing the hyperparameters, so no row is left that took no part "
            "in any choice; all scores are of all rows. Tune on fewer folds (tune.folds) for honest scores"
        )
    return [f"  {line}" for line in lines]


def detail_lines(scores: Scores, chain: Chain, metric: Metric) -> list[str]:
    """The tables of the report behind the summary: gains over the baselines, views, and what each member is worth."""
    from competition.report import blend_tables as report

    tables = [report.gains_table(scores, chain, metric), report.views_table(scores, chain, metric)]
    tables += report.worth_tables(scores, metric)
    lines = [f"  on the rows it was chosen on, the blend ({how(chain, metric)}) scores {scores['chosen_on']:.4f}"]
    lines += seeds_line(scores["seeds"], scores["members"])
    lines += [f"  {sentence}" for sentence in shift_sentences(scores) if not has_shift(scores)]
    lines.append("")
    for table in tables:
        lines += [*table_lines(table.columns, table.rows), *([f"  {table.note}"] if table.note else []), ""]
    return lines


def create_blend(job: Job, sources: Mapping[str, Any], spreads: Mapping[str, float], folder: Path) -> Computed:
    """Fit the blend, write its files to `folder`, and the submission.  Returns the files and the manifest's result.

    sources, spreads: of `ensemble_inputs`.
    """
    result = fit(job, sources, spreads)
    files, digest, scores = write_files(folder, job.prepared, result, job.params.blend.class_shares)
    trained_here = [name for name in sources if name not in job.params.external]
    runs = tuple(f"{name.partition('@')[0]}@{run[:8]}" for name in trained_here for run in sources[name])
    file = record_submission(job, result, digest, runs)
    keep_blend(job, folder, Path(file).stem)
    with track(job, Subject("blend", "blends", folder.name, blend_blocks(job.params))) as tracking:
        numbers = {f"member/{name}": one["score"] for name, one in scores["members"].items()}
        numbers |= {key: scores[key] for key in ("honest", "standard_error", "chosen_on", "honest_rows")}
        numbers["trivial"] = scores["trivial"]["score"]
        texts = {f"sha256/{path.name}": sha256(path) for path in files}
        tracking.end(Outcome(numbers, {"metric": scores["metric"], "submission": digest, **texts}))
    return files, {"file": file, "submission": digest, **scores}


def fit(job: Job, sources: Mapping[str, Any], spreads: Mapping[str, float]) -> BlendResult:
    """Load the predictions, fit the chain, score it, and compare its members."""
    params, prepared = job.params, job.prepared
    inputs = load_predictions(job.workspace, sources)
    metric, oof = prepared.metric, inputs.oof
    settings = chain_settings(params, metric, prepared.competition.needs_a_label)
    with Bar(None, "blend: fitting", "fits") as bar:
        rows = OofRows(oof, inputs.labels, inputs.folds, inputs.tuned_folds)
        honest = fit_and_score_chain(rows, settings, params.honest, bar.update_to, spreads)
    output, classes = honest.cross_fitted.output, len(prepared.competition.classes)
    caveats = load_caveats(job.path("data"))
    scores = {
        **scores_of(params, honest, metric, inputs),
        "oof_digest": digest_of(sorted(zip(inputs.ids.tolist(), inputs.labels.tolist()))),
        "chain": digest_of(honest.chain),
        "notes": inputs.notes,
        "models": model_digests(job.workspace, sources),
        "seeds": spreads,
        "views": {name: {"effect": effect} for name, effect in honest.view_effects.items()},
        "diversity": diversity(honest.chain, oof, inputs.labels[honest.scored], np.flatnonzero(honest.scored), metric),
        "caveats": series_and_shift_effects(caveats, inputs, output, metric, classes, params.honest.seed),
    }
    return BlendResult(inputs, honest, scores)


def write_files(
    folder: Path, prepared: Prepared, result: BlendResult, class_shares: str
) -> tuple[list[Path], str, Mapping[str, Any]]:
    """Write FILES.  Returns their paths, the digest of the submission (without test images that of the blend), and scores.json."""
    inputs, crossed, scores = result.inputs, result.honest.cross_fitted, result.scores
    write_json(folder / "chain.json", result.honest.chain)
    chain = Chain.load(folder / "chain.json")  # test rows go through the chain of the file
    probs, decided = apply_chain(chain, inputs.test)
    if class_shares == "test" and len(inputs.test_ids):
        names = prepared.competition.classes
        before, training = decided, np.bincount(inputs.labels, minlength=len(names)) / len(inputs.labels)
        probs, shares = adapted_to_rows(probs, training)
        decided = chain.decision.labels(probs)
        changed = int((decided != before).sum())
        scores = {**scores, "class_shares": shares_sentence(training, shares, changed, names)}
    write_json(folder / "scores.json", scores)
    save_scores(folder / "test.npz", inputs.test_ids, probs)
    save_scores(folder / "honest_oof.npz", inputs.ids, crossed.probs)
    # scored: 1 for the rows that scores are computed on, 0 for rows of tuned folds.
    decided_texts = stored_labels(crossed.decided, crossed.probs, prepared.competition.targets.kind)
    table = {"id": inputs.ids, "label": decided_texts, "scored": result.honest.scored.astype(int)}
    pd.DataFrame(table).to_csv(folder / "honest_oof.csv", index=False)
    files, submission = [folder / name for name in FILES], folder / "submission.csv"
    if not len(inputs.test_ids):  # cross-validation only
        submission.unlink(missing_ok=True)
        files.remove(submission)
        return files, digest_of([digest_of(chain), sha256(folder / "honest_oof.csv")]), scores
    output = decided if prepared.competition.predicts == "label" else probs
    sample = prepared.folder / "sample_submission.csv"
    return files, submission_csv.write(inputs.test_ids, output, prepared.competition, sample, submission), scores


def record_submission(job: Job, result: BlendResult, digest: str, runs: tuple[str, ...]) -> str:
    """Add the submission to the ledger.  Returns the name of its file in submissions/.  runs: names of the runs that it mixes.

    Without test images there is no file; the name, which ends in -cv, is that of the blend. The ledger counts it all the
    same, because the best of several blends is optimistic with or without a submission.
    """
    chain, scores, predicted = result.honest.chain, result.scores, len(result.inputs.predicted_folds)
    partial = "" if predicted == job.params.prepare.folds else f"{predicted}of{job.params.prepare.folds}"
    end = ".csv" if len(result.inputs.test_ids) else "-cv"
    entry = ledger.Entry(
        digest=digest,
        file=f"{digest[:12]}{f'-partial{partial}' if partial else ''}{end}",
        competition=job.prepared.competition.name,
        members=tuple(chain.blend.weights),
        weights=tuple(round(float(w), 4) for w in chain.blend.shares.values()),
        views=tuple(dict.fromkeys(view for policy in chain.policies.values() for view in policy)),
        params_digest=digest_of(without_secrets(job.params)),
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
        expected=scores["expected"],
        optimistic=scores["optimistic"],
        runs=runs,
        is_doubted=bool(doubts_of(scores)),
        grouping=scores["grouping"],
    )
    job.submissions.mkdir(exist_ok=True)
    ledger.append_entry_once(job.submissions / "ledger.jsonl", entry)
    return entry.file


def keep_blend(job: Job, folder: Path, name: str) -> None:
    """Copy the folder of a blend to blends/. Blends of different members can give the same submission: each is kept."""
    kept = kept_as(job.path("blends", name), folder)
    if not kept.exists():
        unfinished = kept.with_name(f".{kept.name}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(folder, unfinished, ignore=shutil.ignore_patterns("*.lock"))
        unfinished.rename(kept)


def kept_as(first: Path, folder: Path) -> Path:
    """Where the blend in `folder` is kept: as the first one of its submission, or beside it if that is another blend."""
    contents = contents_of_blend(folder)
    is_other = first.exists() and contents_of_blend(first) != contents
    return first.with_name(f"{first.name}-{digest_of(contents)[:6]}") if is_other else first


def contents_of_blend(folder: Path) -> list[str]:
    """What blends of one submission can differ in: digests of the chain and its outputs, and the doubts of its members."""
    files = [folder / name for name in ("chain.json", "honest_oof.csv", "scores.json")]
    if not all(file.is_file() for file in files):  # the user may have deleted it
        return []
    notes: list[str] = json.loads(files[-1].read_text(encoding="utf-8"))["notes"]
    return [*map(sha256, files[:2]), *notes]

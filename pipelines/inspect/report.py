"""Write one HTML page with all results of this competition, from the files of the other stages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich import filesize

from competition.config.digests import digest_of
from competition.config.errors import counted
from competition.config.params_file import BUDGET_FILE
from competition.config.secrets import public_sets, without_secrets
from competition.ensemble.chain import Chain
from competition.ensemble.external_check import joined_notes
from competition.ensemble.metrics import metric_named
from competition.files.manifest import Manifest, read_manifest, write_text
from competition.input_pipeline.decoded_cache import Pixels
from competition.preflight.planning import duration
from competition.prepare.index import has_images
from competition.prepare.prepared import load_caveats
from competition.report import (
    blend_tables,
    caveats,
    classes,
    costs,
    data,
    grad_cam,
    labels_and_values,
    members,
    next_steps,
    overview,
    pictures,
    row_map,
    submissions,
    tuning,
)
from competition.report.page import Figure, Head, Section, Table, render
from competition.report.repeated_choices import choices_lines
from competition.report.terminal import no_better_than_trivial
from competition.submission import ledger
from competition.workspace.current_blend import Differences, current_blend, current_predictions, differences
from competition.workspace.dependencies import budget_file_of
from competition.workspace.runs import Run, runs_of
from competition.workspace.scores import seed_spreads
from competition.workspace.studies import used_study
from competition.workspace.tracking import Outcome, Subject
from pipelines.execution.selection import not_on_kaggle
from pipelines.terminal.job import Job, image_cache, track
from pipelines.terminal.output import as_called, display_path, with_params
from pipelines.terminal.versions import git_commit


@dataclass(frozen=True)
class Results:
    """What the page is made from.  folder, blend: of the newest blend; None without one."""

    folder: Path | None
    blend: Manifest | None
    differences: Differences  # of the blend from the current parameters and data
    rows: classes.HonestRows | None  # scored rows of the blend; only of a blend of the current data
    runs: Mapping[str, Run]  # by title, those of the current parameters
    models_of: Mapping[str, Sequence[members.TrainedFold]]  # by title, the finished fold models
    spreads: Mapping[str, float]
    notes: Sequence[str]
    submitted: Sequence[ledger.SubmissionState]
    test_scores: Sequence[overview.ScoreOnTest]  # of the blend's submission
    pixels: Pixels | None
    stages: Mapping[str, tuple[Sequence[Manifest], float]]  # of costs.stage_seconds


def run(job: Job) -> None:
    """data/ and whatever exists of members/, blend/, ledger.jsonl -> report.html"""
    # The page of a budget lies beside its parameter file, so that it does not replace the page of the user's own file.
    is_of_budget = job.options.params.parts[-2:] == BUDGET_FILE.parts
    page = (job.work / BUDGET_FILE).with_name("report.html") if is_of_budget else job.path("report.html")
    results = load_results(job)
    head = head_of(job, results)
    file = display_path(job.options.params)
    sections = sections_of(job, results)
    write_text(page, render(head, sections, lambda text: as_called(with_params(text, file, job.options.sets))))
    job.echo(*(f"report: {warning}" for warning in head.warnings))
    name = "no-blend" if results.blend is None else results.blend.digest[:8]
    with track(job, Subject("report", "reports", name, {})) as tracking:
        tracking.end(Outcome({}, {}, [page]))
    job.echo(f"report: {display_path(page)} ({filesize.decimal(page.stat().st_size)}, all in one file)")


def load_results(job: Job) -> Results:
    prepared, predictions = job.prepared, current_predictions(job.workspace)
    folder = current_blend(job.workspace, predictions)
    blend = read_manifest(folder / "manifest.json") if folder is not None else None
    spreads, notes = seed_spreads(job.workspace)
    is_current = blend is not None and blend.depends.get("data") == prepared.digest
    counted_spreads = {} if blend is None else blend.result["seeds"]
    if is_current and any(counted_spreads.get(name) != spread for name, spread in spreads.items()):
        text = "Spreads over seeds were measured after this blend was made; `make blend report` counts them in its verdicts."
        notes = [*notes, text]
    runs = {run.title: run for name in job.params.members for run in runs_of(job.workspace, name)}
    sizes = [member.image_size for member in job.params.members.values()]
    competition = job.params.competition
    recorded = ledger.of_competition(ledger.read(job.submissions / "ledger.jsonl"), competition.name, competition.slug)
    own = ledger.entry_of_blend(recorded.entries, blend.result) if blend is not None else None
    # A later blend, by another metric or of other predictions, may have given the same submission.
    submitted = [
        replace(row, entry=own) if own is not None and row.entry.digest == own.digest else row
        for row in ledger.submission_states(recorded)
    ]
    return Results(
        folder,
        blend,
        Differences() if blend is None else differences(job.workspace, job.options.params, blend, predictions),
        classes.honest_rows(folder, prepared) if folder is not None and is_current else None,
        runs,
        {title: members.trained(run, prepared, job.params.prepare.folds) for title, run in runs.items()},
        spreads,
        notes,
        submitted,
        overview.scores_on_test(next((row for row in submitted if row.entry is own), None), job.path("grades.json")),
        pictures.training_pixels(prepared, sizes, job.params.prepare.fit, image_cache(job).folder),
        costs.stage_seconds(job.workspace, runs, blend),
    )


def sections_of(job: Job, results: Results) -> list[Section]:
    """All sections that have something to show, in the order of the page."""
    prepared, blend, pixels, params, runs = job.prepared, results.blend, results.pixels, job.params, results.runs
    has_test = len(prepared.part("test")) > 0
    # The effects of series and shift, if the blend is of the current data.
    current = blend.result if blend is not None and blend.depends.get("data") == prepared.digest else {}
    first_screen, of_scores = None, list[Section]()
    if blend is not None and results.folder is not None:
        chain = Chain.load(results.folder / "chain.json")
        charts = overview.score_charts(blend.result, chain, results.test_scores)
        first_screen = overview.overview_section(charts, results.rows, prepared, pixels)
        of_scores = blend_tables.blend_sections(blend.result, chain, metric_named(chain.metric, params.plugins))
    sections = [
        first_screen,
        steps_section(job, results),
        *of_scores,
        members.members_section(runs, results.models_of, params, prepared, results.spreads),
        tuning.tuning_section(job.workspace),
        *error_sections(job, results),
        # Of stages that not everybody runs: each function reads files and returns None if they are missing.
        grad_cam.grad_cam_section(job.work, prepared.competition.targets.kind, blend, bool(params.members)),
        classes.label_issues_section(job.work, prepared, blend),
        pictures.samples_section(prepared, pixels, runs) if has_images(prepared.index) else None,
        data.data_section(prepared),
        caveats.caveats_section(
            prepared.folder, load_caveats(prepared.folder), prepared.part("train"), current, has_test
        )
        if has_images(prepared.index)
        else None,
        submissions.leaderboard_section(
            ledger.with_local_grades(results.submitted, job.path("grades.json")),
            params,
            has_test,
            blend.result["submission"] if blend is not None else "",
            submissions.NO_SCORE if prepared.competition.slug else not_on_kaggle(job),
        ),
        costs.costs_section(job.workspace, results.stages),
        provenance_section(job, blend),
    ]
    existing = [section for section in sections if section is not None]
    # If other members were blended, the sections that show the current parameters say so.
    if results.differences.of_members:
        label = "of the current parameters, not of the blend"
        of_others = ("members", "tuning", "costs")
        return [replace(one, title=f"{one.title} ({label})") if one.key in of_others else one for one in existing]
    return existing


def steps_section(job: Job, results: Results) -> Section:
    """What to do next, with commands for these parameters."""
    params, prepared = job.params, job.prepared
    steps = next_steps.blend_steps(results.blend.result) if results.blend is not None else []
    steps += next_steps.training_steps(results.models_of, prepared.metric)
    has_study = any(used_study(job.workspace, name) for name in params.members)
    steps += next_steps.open_steps(params, prepared, results.models_of, results.submitted, results.spreads, has_study)
    file, sets = display_path(job.options.params), job.options.sets.strip()
    if sets and public_sets(sets) == sets and '"' not in sets:  # a step with a SET of its own has both
        steps = [replace(step, command=step.command.replace('SET="', f'SET="{sets} ')) for step in steps]
    # The output of a budget says what more time would pay for, and the calls of its own file have no HOURS.
    if job.options.params.parts[-2:] == BUDGET_FILE.parts:
        steps = [step for step in steps if "HOURS=" not in step.command]
    steps = [replace(step, command=as_called(with_params(step.command, file, sets))) for step in steps]
    return next_steps.next_steps_section(steps)


def head_of(job: Job, results: Results) -> Head:
    prepared, blend, folds = job.prepared, results.blend, counted(job.params.prepare.folds, "fold")
    competition, has_test = prepared.competition, len(prepared.part("test")) > 0
    counts = ", ".join(f"{len(prepared.part(part)):,} {part}" for part in ("train", "test"))
    classes = counted(len(competition.classes), "class", "classes")
    kinds = {"regression": "regression", "multi": f"{classes}, several per image", "ordinal": f"{classes}, ordinal"}
    parts = [competition.metric, f"{counts} rows", kinds.get(competition.target, classes), folds]
    footer = f"Made by `make report`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
    warnings = [*results.differences.sentences, *results.notes]
    if blend is None:
        figures = [Figure("honest score", "none yet", "`make train predict` makes one")]
        return Head(competition.name, " · ".join(parts), figures, warnings, footer)
    parts.append(f"submission {blend.result['file']}" if has_test else "no test images: cross-validation only")
    warnings += [f"{note}." for note in joined_notes(blend.result.get("notes", ()))]
    if "-partial" in blend.result["file"]:
        warnings.append("The blend is partial; `make train predict` makes the complete one.")
    warnings += [f"The blend is {words}." for words in no_better_than_trivial(blend.result)]
    figures = overview.score_figures(blend.result, results.test_scores)
    if results.rows is not None and competition.targets.kind == "single":
        wrong, scored = results.rows.labels != results.rows.predicted, counted(len(results.rows.labels), "scored row")
        figures.insert(1, Figure("wrong rows", f"{wrong.sum():,}", f"{wrong.mean():.1%} of {scored}"))
    if not results.differences.of_members:
        seconds = {name: one for name, (_, one) in results.stages.items()}
        longest = max(seconds, key=lambda name: seconds[name])
        note = f"on this machine; the longest part: {longest}, {duration(seconds[longest])}"
        figures.append(Figure("time", duration(sum(seconds.values())), note))
    choices = choices_lines(job.submissions, job.params, blend.result)
    verdict = overview.verdict(blend.result, bool(choices))
    return Head(competition.name, " · ".join(parts), figures, [*warnings, *choices], footer, verdict)


def error_sections(job: Job, results: Results) -> list[Section | None]:
    """Sections on classes or labels and on the worst rows, and of single labels the map of the rows."""
    if results.rows is None or results.folder is None:
        return []
    prepared, rows, (_, labels, decided, probs) = job.prepared, results.rows, results.rows
    kind = prepared.competition.targets.kind
    worst = labels_and_values.worst_section(rows, prepared, results.pixels)
    if kind == "multi":
        return [labels_and_values.labels_section(labels, decided, probs, prepared.competition.classes), worst]
    if kind == "regression":
        return [worst]
    features = row_map.stored_features(job.workspace, Chain.load(results.folder / "chain.json").blend.weights)
    return [
        classes.classes_section(rows, prepared),
        row_map.map_section(rows, prepared, results.pixels, features),
        worst,
    ]


def provenance_section(job: Job, blend: Manifest | None) -> Section:
    """Section with command lines, parameters and versions that reproduce the results."""
    prepared, params_file = job.prepared, display_path(job.options.params)
    given = "" if params_file == "params.yaml" else f" PARAMS={params_file}"
    given += f' SET="{public_sets(job.options.sets)}"' if job.options.sets else ""
    predictions = blend.depends.get("predictions", {}) if blend is not None else {}
    of_budget = budget_file_of(predictions, job.workspace.folder, job.params)
    everything = f" PARAMS={display_path(of_budget)}" if of_budget else given
    facts = [
        ["this page", f"make report{given}"],
        ["all of it", f"make download train predict{everything}"],
        ["parameters", f"{params_file}, digest {digest_of(without_secrets(job.params))}"],
        ["data", f"digest of the index {prepared.digest[:64]}"],
        ["code", git_commit() or "not in a repository"],
    ]
    if blend is not None:
        if len(prepared.part("test")):
            facts.append(["submission", f"{blend.result['file']}, sha256 {blend.result['submission']}"])
        facts.append(["blend", f"digest {blend.digest}"])
        facts.append(["packages", ", ".join(f"{name} {version}" for name, version in blend.made_with.items())])
    return Section("made", "Made from", "params, manifests", [Table(["what", "how"], facts, 2)])

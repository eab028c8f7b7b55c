"""Everything that is known of this competition on one page, from the files that the other stages left."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from competition.artifacts.dependencies import fold_views_manifest
from competition.artifacts.ensemble_inputs import prediction_digests, seed_spreads
from competition.artifacts.manifest import Manifest, atomic_write, changed_keys, digest_of, read_manifest, to_plain
from competition.data.caveats import load_caveats
from competition.data.prepared import Prepared, load_prepared
from competition.ensemble.chain import Chain
from competition.ensemble.metrics import metric_named
from competition.report import caveats, classes, data, members, scores, tpu
from competition.report.page import Figure, Head, Section, Table, render
from competition.report.repeated_choices import choices_lines
from competition.submission import ledger
from pipelines.cli import main
from pipelines.runner import Job, display_path
from pipelines.versions import git_commit, versions

BLOCKS = ("policy", "blend", "decision", "honest")


def run(job: Job) -> None:
    """data/, and of members/, blend/, preflight/, plan.json, ledger.jsonl what is there -> report.html"""
    job.require(job.path("data", "manifest.json"), "download")
    prepared, made = load_prepared(job.path("data")), read_manifest(job.path("blend", "manifest.json"))
    book = ledger.rows(ledger.read(job.submissions / "ledger.jsonl"))
    mine = [row for row in book if row.entry.competition == job.params.competition.name]
    spreads, notes = seed_spreads(job.work, job.params, prepared, job.overrides)
    names, folds, metric = list(job.params.members), job.params.prepare.folds, metric_named(prepared.competition.metric)
    sections = [
        *reached(job, made, mine),
        scores.ways_section(job.path("table.json"), metric),
        members.members_section(job.work, names, folds, metric.name, spreads),
        *wrong(job, prepared, made),
        classes.label_issues_section(job.path("label_issues.csv")),
        data.data_section(prepared),
        caveats_of(job, prepared, made),
        tpu.tpu_section(job.work),
        scores.ledger_section(mine, job.params.kaggle.public_share, looks(job)),
        made_with(job, prepared, made),
    ]
    head = head_of(job, prepared, made, mine, [*stale(job, prepared, made), *notes])
    page = job.path("report.html")
    with atomic_write(page) as temporary:
        temporary.write_text(render(head, [one for one in sections if one is not None]), encoding="utf-8")
    for warning in head.warnings:
        job.echo(f"report: {warning}")
    job.echo(f"report: {display_path(page)} ({page.stat().st_size / 1e6:.1f} MB, all in one file)")


def head_of(
    job: Job, prepared: Prepared, made: Manifest | None, mine: Sequence[ledger.Row], warnings: Sequence[str]
) -> Head:
    wanted, counts = prepared.competition, [f"{len(prepared.part(part)):,} {part}" for part in ("train", "test")]
    parts = [wanted.metric, f"{', '.join(counts)} rows", f"{len(wanted.classes)} classes"]
    parts.append(f"{job.params.prepare.folds} folds")
    figures = [Figure("honest score", "none yet", "`make train predict` makes one")]
    if made is not None:
        figures = caveats.without_interval(scores.figures(made.result, line_of_ledger(made, mine)), made.result)
        parts.append(f"submission {made.result['file']}")
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return Head(wanted.name, " · ".join(parts), figures, warnings, f"Made by `make report`, {at}.")


def line_of_ledger(made: Manifest, mine: Sequence[ledger.Row]) -> ledger.Row | None:
    return next((row for row in mine if row.entry.digest == made.result["submission"]), None)


def reached(job: Job, made: Manifest | None, mine: Sequence[ledger.Row]) -> list[Section | None]:
    """Scores, views and what each member is worth."""
    if made is None:
        return []
    chain, told = Chain.load(job.path("blend", "chain.json")), made.result
    worth = scores.worth_section(told["diversity"]) if "diversity" in told else None
    return [
        scores.blend_section(told, chain, line_of_ledger(made, mine)),
        scores.views_section(told, chain),
        worth,
    ]


def wrong(job: Job, prepared: Prepared, made: Manifest | None) -> list[Section | None]:
    """Classes, calibration and the surest errors, where the blend is of the rows that are prepared now."""
    if made is None or made.depends.get("data") != prepared.digest:
        return []
    rows = classes.honest_rows(job.path("blend"), prepared)
    _, labels, given, said = rows
    return [
        classes.classes_section(labels, given, prepared.competition.classes),
        classes.calibration_section(labels, said),
        classes.errors_section(rows, prepared, job.params.prepare.fit),
    ]


def caveats_of(job: Job, prepared: Prepared, made: Manifest | None) -> Section | None:
    """Series and shift, with what they mean for the blend where it is of the rows that are prepared now."""
    current = made is not None and made.depends.get("data") == prepared.digest
    told = made.result if made is not None and current else {}
    return caveats.caveats_section(prepared.folder, load_caveats(prepared.folder), prepared.part("train"), told)


def stale(job: Job, prepared: Prepared, made: Manifest | None) -> list[str]:
    """What has changed since the blend was made: its figures are those of before."""
    if made is None:
        return []
    if made.depends.get("data") != prepared.digest:
        return ["The blend is of other data than those that are here now; `make train predict` makes it again."]
    found = []
    for name, folds in made.depends.get("predictions", {}).items():
        if name not in job.params.members:
            continue
        now = {
            fold: read_manifest(fold_views_manifest(job.work, name, fold)) for fold in range(job.params.prepare.folds)
        }
        if prediction_digests(now) != folds:
            found.append(f"{name} was trained or predicted again since the blend was made; `make blend` takes it in.")
    wanted = {block: to_plain(getattr(job.params, block)) for block in BLOCKS}
    changed = changed_keys({block: made.depends.get(block, {}) for block in BLOCKS}, wanted)
    if changed:
        found.append(
            f"The blend was made with other parameters ({'; '.join(changed[:3])}); `make blend` makes it again."
        )
    return found


def looks(job: Job) -> int:
    """How often `make grade` has opened the private solution."""
    book, name = job.submissions / "ledger.jsonl", job.params.competition.name
    return ledger.looks_at_solution(book, name, job.path("looks.json"))


def made_with(job: Job, prepared: Prepared, made: Manifest | None) -> Section:
    """Command lines, parameters, versions: how to get the same again."""
    parameters, sets = display_path(job.options.params), f' SET="{job.options.sets}"' if job.options.sets else ""
    picked = "" if parameters == "params.yaml" else f" PARAMS={parameters}"
    facts = [
        ["this page", f"make report{picked}{sets}"],
        ["all of it", f"make download train predict{picked}{sets}"],
        ["parameters", f"{parameters}, digest {digest_of(job.params)}"],
        ["data", f"digest of the index {prepared.digest[:64]}"],
        ["code", git_commit() or "not in a repository"],
    ]
    if made is not None:
        facts.append(["submission", f"{made.result['file']}, sha256 {made.result['submission']}"])
        facts.append(["blend", f"digest {made.digest}"])
        lines = choices_lines(job.work, job.submissions, job.params, prepared, made.result["submission"])
        facts += [["choices", line.removeprefix("repeated choices: ")] for line in lines]
    here, then = versions(), made.made_with if made is not None else {}
    rows: list[list[Any]] = [[name, here.get(name, "–"), then.get(name, "–")] for name in {**here, **then}]
    tables = [Table(["what", "how"], facts, 2), Table(["package", "here", "when the blend was made"], rows, 3)]
    return Section("made", "Made from", "params, manifests", [*tables])


if __name__ == "__main__":
    main("report")

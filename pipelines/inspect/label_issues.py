"""Labels that are probably wrong according to honest out-of-fold probabilities: a CSV, and a contact sheet of the worst."""

from pathlib import Path

import numpy as np

from competition.config.errors import UserError, counted
from competition.ensemble.stored_predictions import load_scores, positions
from competition.files.manifest import atomic_write
from competition.prepare import label_issues
from competition.report.classes import ISSUES_FILE, ISSUES_MANIFEST, ISSUES_SHEET
from competition.report.pictures import TILE, contact_sheet, training_pixels
from competition.submission.submission_csv import for_spreadsheet
from pipelines.execution.selection import blend_of_classes
from pipelines.terminal.job import Computed, Job, image_cache
from pipelines.terminal.output import display_path

SHEET_IMAGES = 48


def run(job: Job) -> None:
    """blend/<current>/honest_oof.npz -> label_issues.csv, label_issues.png, label_issues.json"""
    folder, blend = blend_of_classes(job, "label-issues compares classes with each other")
    prepared = job.prepared
    classes = np.array(prepared.competition.classes)
    # Cross-fitted: a row's label took part in no model and no choice that its probabilities come from.
    ids, scores = load_scores(folder / "honest_oof.npz")
    labels_by_id = prepared.part("train").set_index("id")["label"]
    is_prepared = np.isin(ids, labels_by_id.index.to_numpy(str))
    if not is_prepared.any() or scores.shape[1] != len(classes):
        raise UserError(
            f"the blend is of other data: {is_prepared.sum():,} of its {len(ids):,} rows are in the prepared data, and it has "
            f"{counted(scores.shape[1], 'class', 'classes')}, expected {len(classes)}; `make train predict` makes a new one"
        )
    if not is_prepared.all():
        job.echo(
            f"label-issues: left out {(~is_prepared).sum():,} of {len(ids):,} rows, which the prepared data no longer have; "
            "`make train predict` makes a new blend"
        )
    ids, scores = ids[is_prepared], scores[is_prepared]
    labels = labels_by_id.loc[ids].to_numpy()

    def find(target: Path) -> Computed:
        issues = label_issues.find_label_issues(ids, labels, scores)
        issues = issues.assign(label=classes[issues["label"]], suggested=classes[issues["suggested"]])
        file, sheet = target / ISSUES_FILE, target / ISSUES_SHEET
        with atomic_write(file) as temporary:
            for_spreadsheet(issues).to_csv(temporary, index=False, lineterminator="\n")
        sheet.unlink(missing_ok=True)  # of an earlier blend
        pixels = training_pixels(prepared, [TILE], job.params.prepare.fit, image_cache(job).folder)
        worst = issues.head(SHEET_IMAGES)
        if len(worst) and pixels is not None:
            rows = positions(prepared.part("train")["id"].to_numpy(str), worst["id"].to_numpy(str))
            captions = [
                f"{row.id}\nlabel {row.label} {row.label_probability:.2f}\nor {row.suggested} {row.suggested_probability:.2f}"
                for row in worst.itertuples()
            ]
            contact_sheet(pixels[rows], captions, sheet)
        return [one for one in (file, sheet) if one.exists()], {"issues": len(issues), "rows": len(ids)}

    depends = {"blend": blend.digest, "data": prepared.digest}
    found = job.cached("label-issues", job.path(ISSUES_MANIFEST), depends, find).result
    rows = counted(found["rows"], "row")
    if not found["issues"]:
        job.echo(f"label-issues: no doubtful label among {rows}")
        return
    sheet = job.path(ISSUES_SHEET)
    drawn = f", {display_path(sheet)}" if sheet.is_file() else ""
    listed = f"{counted(found['issues'], 'doubtful label')} among {rows}, the worst first"
    job.echo(f"label-issues: {listed}: {display_path(job.path(ISSUES_FILE))}{drawn}")

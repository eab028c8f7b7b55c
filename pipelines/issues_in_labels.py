"""Labels that are probably wrong, by honest out-of-fold probabilities: a CSV, and a contact sheet of the worst."""

import numpy as np
import pandas as pd

from competition.artifacts.manifest import atomic_write
from competition.config.errors import UserError
from competition.data import label_issues, records
from competition.data.images import BadImage, decode
from competition.data.prepared import Prepared, load_prepared
from competition.ensemble.predictions import load_scores
from competition.report.sheets import TILE, contact_sheet
from pipelines.backend import start_tensorflow
from pipelines.cli import main
from pipelines.runner import Job, display_path

SHOWN = 48  # images on the sheet


def run(job: Job) -> None:
    """blend/honest_oof.npz -> label_issues.csv, label_issues.png"""
    job.require(job.path("blend", "manifest.json"), "predict")
    prepared = load_prepared(job.path("data"))
    classes = np.array(prepared.competition.classes)
    # Cross-fitted: no model and no choice behind a row's probabilities saw its label.
    ids, scores = load_scores(job.path("blend", "honest_oof.npz"))
    labels_by_id = prepared.part("train").set_index("id")["label"]
    known = np.isin(ids, labels_by_id.index.to_numpy(str))
    if not known.any() or scores.shape[1] != len(classes):
        raise UserError(
            f"the blend is of other data: {known.sum():,} of its {len(ids):,} rows are in the prepared data, and it has "
            f"{scores.shape[1]} classes of {len(classes)}; `make train predict` makes it again"
        )
    if not known.all():
        job.echo(
            f"issues-in-labels: {(~known).sum():,} of {len(ids):,} rows are left out: the prepared data no longer have "
            "them; `make train predict` makes the blend again"
        )
    ids, scores = ids[known], scores[known]
    labels = labels_by_id.loc[ids].to_numpy()
    found = label_issues.find(ids, labels, scores)
    named = found.assign(label=classes[found["label"]], suggested=classes[found["suggested"]])
    with atomic_write(job.path("label_issues.csv")) as temporary:
        named.to_csv(temporary, index=False, lineterminator="\n")
    job.echo(
        f"issues-in-labels: {len(named):,} of {len(labels):,} labels are doubtful, the worst first: "
        f"{display_path(job.path('label_issues.csv'))}"
    )
    if len(named):
        draw(job, prepared, named.head(SHOWN))


def draw(job: Job, prepared: Prepared, worst: pd.DataFrame) -> None:
    start_tensorflow(job)
    wanted = list(worst["id"])
    found: dict[str, np.ndarray] = {}
    for name, _, data in records.read([str(path) for path in prepared.records("train")]):
        if name in wanted:
            try:
                found[name] = decode(data, TILE, "squash")
            except BadImage:
                continue
    captions = {
        row.id: f"{row.id}\nis {row.label} {row.label_probability:.2f}\nor {row.suggested} {row.suggested_probability:.2f}"
        for row in worst.itertuples()
    }
    names = [name for name in wanted if name in found]
    sheet = job.path("label_issues.png")
    contact_sheet([found[name] for name in names], [captions[name] for name in names], sheet)
    job.echo(f"issues-in-labels: {display_path(sheet)}")


if __name__ == "__main__":
    main("issues-in-labels")

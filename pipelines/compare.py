"""Two blends on the same rows: the paired honest difference with its interval, and which rows changed."""

from pathlib import Path

import numpy as np
import pandas as pd

from competition.data.prepared import load_prepared
from competition.ensemble.compare import compare
from competition.ensemble.metrics import metric_named
from competition.ensemble.predictions import load_scores
from competition.errors import Refusal
from competition.manifest import atomic
from competition.report.words import verdict
from pipelines.stage import Job, add_two, main, shown


def run(job: Job) -> None:
    """blends/<A>, blends/<B> -> compare.csv: id, label, before, after"""
    prepared, (a, b) = load_prepared(job.path("data")), (kept(job, job.options.a), kept(job, job.options.b))
    classes, metric = prepared.competition.classes, metric_named(prepared.competition.metric)
    ids_a, ids_b = (load_scores(folder / "honest_oof.npz")[0] for folder in (a, b))
    shared = np.intersect1d(ids_a, ids_b)
    labels = prepared.part("train").set_index("id")["label"].loc[shared].to_numpy()
    before, after = (said(folder, shared, metric.of_tally is not None) for folder in (a, b))
    honest = job.params.honest
    found = compare(shared, labels, before, after, metric, len(classes), honest.resamples, honest.seed)
    d = found.difference
    job.say(f"compare: {b.name} over {a.name}, {metric.name} on {len(shared):,} out-of-fold rows, both cross-fitted")
    job.say(f"  {d.value:+.4f} ± {d.error:.4f} (95 of 100: {d.low:+.4f} to {d.high:+.4f}): {verdict(d)}")
    truth = dict(zip(shared, labels))
    rows = [
        (name, classes[truth[name]], classes[x], classes[y], x == truth[name], y == truth[name])
        for name, x, y in found.changed
    ]
    table = pd.DataFrame(rows, columns=["id", "label", "before", "after", "was_right", "is_right"])
    with atomic(job.path("compare.csv")) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")
    better, worse = (
        int((~table["was_right"] & table["is_right"]).sum()),
        int((table["was_right"] & ~table["is_right"]).sum()),
    )
    job.say(f"  {len(table):,} rows changed: {better} corrected, {worse} corrupted: {shown(job.path('compare.csv'))}")


def kept(job: Job, name: str) -> Path:
    """The folder of the one blend whose submission begins with `name`."""
    folders = sorted(job.path("blends").glob("*")) if job.path("blends").is_dir() else []
    found = [folder for folder in folders if name and folder.name.startswith(Path(name).stem)]
    if len(found) != 1:
        known = ", ".join(folder.name for folder in folders) or "none"
        raise Refusal(
            f"{name!r} names {len(found)} blends where one was expected (make compare A=... B=...); there are {known}"
        )
    return found[0]


def said(folder: Path, ids: np.ndarray, as_labels: bool) -> np.ndarray:
    if as_labels:
        return (
            pd.read_csv(folder / "honest_oof.csv", dtype={"id": str}, keep_default_na=False)
            .set_index("id")["label"]
            .loc[ids]
            .to_numpy()
        )
    return load_scores(folder / "honest_oof.npz", ids)[1]


if __name__ == "__main__":
    main(run, add_two)

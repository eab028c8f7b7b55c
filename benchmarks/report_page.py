"""Size of the report of a large competition, and the time in which a browser opens it.

    python -m benchmarks.report_page

104 classes, 16,465 rows, 3 members of 5 folds, a study of 100 trials; generated predictions with 12 % errors,
224-px pictures of noise, the worst case for JPEG.
The reference of the opening time is the same browser with an empty page, in the same run. Needs Chromium.
"""

import sys
import tempfile
import time
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd

from competition.files.manifest import Manifest
from competition.prepare.competition import Competition
from competition.prepare.prepared import Prepared
from competition.report import classes, samples
from competition.report.charts import Point, score_chart
from competition.report.members import FoldModel, curve_charts, scores_table
from competition.report.page import Charts, Figure, Head, Section, render
from competition.report.tuning_charts import ScoredTrial, history_chart, importance_chart, score_axis, slice_charts

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import Browser, executable

CLASSES, ROWS, SIZE, EPOCHS, OPENINGS = 104, 16_465, 224, 20, 5


class Noise:
    """Images of noise, one for each row, made when they are read."""

    shape = (ROWS, SIZE, SIZE, 3)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return np.stack([np.random.default_rng(int(row)).integers(0, 256, (SIZE, SIZE, 3), np.uint8) for row in rows])


def competition() -> tuple[Prepared, tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(0)
    names = tuple(f"species number {n:03}" for n in range(CLASSES))
    labels = rng.integers(0, CLASSES, ROWS)
    predicted = np.where(rng.random(ROWS) < 0.12, rng.integers(0, CLASSES, ROWS), labels)
    scores = rng.random((ROWS, CLASSES)).astype(np.float32) * 0.01
    scores[np.arange(ROWS), predicted] += rng.random(ROWS)
    ids = np.array([f"{n:09x}" for n in range(ROWS)])
    index = pd.DataFrame({"id": ids, "label": labels, "part": "train", "fold": labels % 5})
    described = Competition("large", "", names, "macro_f1", "label", "id", ("label",), names)
    return Prepared(Path(), described, index, "digest"), (ids, labels, predicted, scores / scores.sum(1, keepdims=True))


def members() -> Section:
    """Scores and learning curves of 3 members with 5 folds of 20 epochs, as in the section of that name."""
    epochs, models_of = np.arange(1, EPOCHS + 1), {}
    for n in range(3):
        models = []
        for fold in range(5):
            noise = np.random.default_rng(5 * n + fold).normal(0, 0.01, EPOCHS)
            loss, score = np.exp(-epochs / 5) + noise, 0.9 - 0.5 * np.exp(-epochs / 4) + noise
            columns = {"epoch": epochs, "loss": loss, "learning_rate": 0.001 / epochs, "held_out": score}
            history = pd.DataFrame({**columns, "held_out_loss": 1.1 * loss})
            models.append(FoldModel(fold, Manifest("", {}, {}, {}, {}), float(score[-1]), history, 40.0))
        models_of[f"member {n}"] = models
    table = scores_table(models_of, dict.fromkeys(models_of, ()), 5, "macro_f1")
    curves = [block for name, models in models_of.items() for block in curve_charts(name, models, "macro_f1")]
    return Section("members", "Members", "", [table, *curves])


def tuning() -> Section:
    """Charts of a study of 100 trials of 6 parameters, as in the section of that name."""
    rng, keys = np.random.default_rng(0), [f"parameter {n}" for n in range(6)]
    trials = [
        ScoredTrial(n, 0.9 + rng.normal(0, 0.01), dict(zip(keys, rng.random(6), strict=True)), n == 0, nan)
        for n in range(100)
    ]
    axis = score_axis(trials, "macro_f1", 1)
    importances = dict(zip(keys, [0.4, 0.2, 0.15, 0.1, 0.1, 0.05], strict=True))
    drawings = [history_chart(trials, axis), importance_chart(importances), *slice_charts(trials, keys, set(), axis)]
    return Section("tuning", "Tuning", "", [Charts(drawings)])


def page() -> str:
    prepared, rows = competition()
    points = [Point(f"member {n}", 0.9, 0.002, True) for n in range(3)]
    sections = [
        Section("blend", "Scores", "", [Charts(score_chart(points, (0.88, 0.92), "macro_f1"))]),
        members(),
        tuning(),
        classes.classes_section(rows, prepared, Noise()),
        classes.calibration_section(rows[1], rows[3]),
        classes.errors_section(rows, prepared, Noise()),
        samples.samples_section(prepared, Noise(), {}),
    ]
    return render(Head("large", "", [Figure("honest", "0.9")], [], ""), [section for section in sections if section])


def opening_seconds(browser: Browser, file: Path, ready: str) -> float:
    browser.call("Page.navigate", url="about:blank")
    started = time.perf_counter()
    browser.call("Page.navigate", url=file.as_uri())
    browser.wait_for(f"document.readyState === 'complete' && {ready}")
    browser.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # painted
    return time.perf_counter() - started


def main() -> None:
    started = time.perf_counter()
    text = page()
    print(f"rendered in {time.perf_counter() - started:.1f} s, {len(text.encode()) / 1e6:.2f} MB")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty.html").write_text("<!doctype html><title>empty</title><p>empty")
        (folder / "report.html").write_text(text, encoding="utf-8")
        browser = Browser(str(executable()), folder / "profile")
        try:
            pairs = [
                (
                    opening_seconds(browser, folder / "empty.html", "true"),
                    opening_seconds(
                        browser, folder / "report.html", "document.documentElement?.dataset.ready === 'yes'"
                    ),
                )
                for _ in range(OPENINGS)
            ]
        finally:
            browser.close()
    empty, full = np.median(np.array(pairs), axis=0)
    print(
        f"opens and paints in {full:.2f} s (median of {OPENINGS}), an empty page in {empty:.2f} s: {full / empty:.1f} times"
    )


if __name__ == "__main__":
    main()

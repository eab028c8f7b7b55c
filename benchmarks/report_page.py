"""Size of the report of a large competition, and the time in which a browser opens it.

    python -m benchmarks.report_page

104 classes, 16,465 rows, 3 members, generated predictions with 12 % errors, 224-px pictures of noise, the worst case for JPEG.
The reference of the opening time is the same browser with an empty page, in the same run. Needs Chromium.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from competition.data.competition import Competition
from competition.data.prepared import Prepared
from competition.report import classes, samples
from competition.report.charts import Point, score_chart
from competition.report.page import Charts, Figure, Head, Section, render

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import Browser, executable

CLASSES, ROWS, SIZE, OPENINGS = 104, 16_465, 224, 5


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


def page() -> str:
    prepared, rows = competition()
    points = [Point(f"member {n}", 0.9, 0.002, True) for n in range(3)]
    sections = [
        Section("blend", "Scores", "", [Charts(score_chart(points, (0.88, 0.92), "macro_f1"))]),
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

"""The report's section on cross-validation against the leaderboard, and which two submissions to select."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from competition.ensemble.metrics import metric_named
from competition.report.charts import scatter_chart
from competition.report.page import Block, Charts, Section, Table, Text
from competition.report.terminal import plus_minus
from competition.submission import ledger

ENOUGH = 4  # submissions with both scores from which a rank correlation is given
RESAMPLES = 2000
Changed = Callable[[str, str], float | None]  # names of two files -> share of rows that differ; None if unknown


@dataclass(frozen=True)
class Choice:
    row: ledger.Row
    why: str


def leaderboard_section(rows: Sequence[ledger.Row], public_share: float, changed: Changed) -> Section | None:
    """None without a submission file.  rows: of this competition."""
    rows = [row for row in rows if row.entry.test_rows and row.entry.honest_score is not None]
    if not rows:
        return None
    blocks: list[Block] = []
    scored = [row for row in rows if row.public_score is not None]
    if scored:
        blocks += correlation_blocks(scored, public_share)
    else:
        blocks.append(Text(["No submission has a public score yet; `make submit` sends the newest and waits for it."]))
    choices = choose_two(rows, changed)
    cells = [
        [row.entry.file, choice.why, honest_text(row.entry), _score(row.public_score)]
        for choice in choices
        for row in [choice.row]
    ]
    blocks.append(
        Table(
            ["select", "why", "honest (training rows)", "public (other rows: test)"],
            cells,
            2,
            "Kaggle counts the better of two selected submissions. The private score is of rows that neither column has seen.",
            title="Which two submissions to select",
        )
    )
    return Section("leaderboard", "Leaderboard", "submissions/ledger.jsonl · make submit, make submissions", blocks)


def correlation_blocks(rows: Sequence[ledger.Row], public_share: float) -> list[Block]:
    """Honest against public scores with the interval expected by chance, and their rank correlation."""
    points, outside = [], 0
    for row in rows:
        band = ledger.noise_band(row.entry, public_share)
        honest, public = row.entry.honest_score, row.public_score
        if band is None or honest is None or public is None:
            continue
        low, high = honest + band[0], honest + band[1]
        outside += not low <= public <= high
        points.append((row.entry.digest[:8], honest, row.entry.standard_error or 0.0, public, low, high))
    if not points:
        return []
    text = (
        f"{len(points)} submissions have a public score; {outside} of them {'is' if outside == 1 else 'are'} outside the interval "
        f"expected by chance (95 %, if {public_share:.0%} of the test rows count). {correlation_text(points)}"
    )
    note = (
        "Across: the honest score with its standard error, on training rows. Up: the public score, on test rows. Shaded: where chance "
        "puts it in 95 % of cases; ● inside, ✕ outside. The dashed line is equality."
    )
    chart = scatter_chart(points, "honest score", "public score", "honest against public scores")
    return [Text([text]), Charts([chart], note)]


def correlation_text(points: Sequence[tuple[str, float, float, float, float, float]]) -> str:
    """Spearman's rank correlation of honest and public scores with a bootstrap interval."""
    if len(points) < ENOUGH:
        return f"A rank correlation needs {ENOUGH} of them."
    honest, public = (np.array([point[n] for point in points]) for n in (1, 3))
    rho = rank_correlation(honest, public)
    if not np.isfinite(rho):
        return "Their rank correlation is undefined: all scores of one kind are equal."
    draws = np.random.default_rng(0).integers(0, len(points), (RESAMPLES, len(points)))
    values = np.array([rank_correlation(honest[draw], public[draw]) for draw in draws])
    low, high = np.quantile(values[np.isfinite(values)], [0.025, 0.975])
    return f"Rank correlation {rho:+.2f} (bootstrap 95 % interval {low:+.2f} to {high:+.2f}, n = {len(points)})."


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation with mean ranks of ties; NaN if all values of one are equal.  a, b: (n,)."""
    from scipy.stats import rankdata

    ranks = rankdata(a), rankdata(b)
    if np.ptp(ranks[0]) == 0 or np.ptp(ranks[1]) == 0:
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def choose_two(rows: Sequence[ledger.Row], changed: Changed) -> list[Choice]:
    """The submission with the best honest score, and a second one that is as good within noise.

    The second is the best public score among those within one standard error of the first; without public scores, the one
    that differs from the first in most rows, which hedges. Scores of tuned rows (optimistic) are not compared with others.
    """
    sign = metric_named(rows[-1].entry.metric).sign
    same = [row for row in rows if row.entry.metric == rows[-1].entry.metric]
    same = [row for row in same if not row.entry.optimistic] or same

    def honest(row: ledger.Row) -> float:
        return sign * (row.entry.honest_score if row.entry.honest_score is not None else -np.inf)

    first = max(reversed(same), key=honest)  # the newest of equal ones
    error = first.entry.standard_error or 0.0
    others = [row for row in same if row is not first]
    near = [row for row in others if honest(row) >= honest(first) - error]
    choices = [Choice(first, f"the best honest score; {len(near)} others are within its standard error")]
    if not others:
        return choices
    public = [(sign * row.public_score, row) for row in near if row.public_score is not None]
    if public:
        best = max(public, key=lambda pair: pair[0])[1]
        return [*choices, Choice(best, "the best public score among those within one standard error of the first")]
    shares = [(share, row) for row in near if (share := changed(first.entry.file, row.entry.file)) is not None]
    if shares:
        share, row = max(shares, key=lambda pair: pair[0])
        return [
            *choices,
            Choice(row, f"as good within noise, and differs most from the first ({share:.1%} of the rows): a hedge"),
        ]
    row = max(reversed(others), key=honest)
    return [*choices, Choice(row, "the next best honest score" + ("" if near else ", worse by more than noise"))]


def honest_text(entry: ledger.Entry) -> str:
    error = f" {plus_minus(entry.standard_error)}" if entry.standard_error is not None else ""
    return f"{_score(entry.honest_score)}{error}{' (optimistic)' if entry.optimistic else ''}"


def _score(value: float | None) -> str:
    return f"{value:.5f}" if value is not None else "–"

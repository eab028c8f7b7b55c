"""The report's sections on submissions: cross-validation against the leaderboard, which two to select, the ledger."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from competition.config.errors import counted
from competition.ensemble.metrics import metric_named
from competition.report.page import Block, Section, Table, Text
from competition.report.repeated_choices import on_same_rows
from competition.report.terminal import plus_minus
from competition.submission import ledger

ENOUGH = 4  # submissions with both scores from which a rank correlation is given
RESAMPLES = 2000
TITLE, SOURCES = "Leaderboard", "submissions/ledger.jsonl · make submit, make submissions"
# The names of two files -> the share of rows in which they differ, or None if it is unknown.
Changed = Callable[[str, str], float | None]


def leaderboard_section(
    rows: Sequence[ledger.Row],
    public_share: float,
    changed: Changed,
    has_test: bool,
    digest: str = "",
) -> Section:
    """Honest against public scores, and the choice of two submissions; one sentence without a submission file.

    rows: of this competition.  has_test: it has test images.  digest: of the page's submission, which counts as the newest.
    """
    rows = [row for row in rows if row.entry.test_rows and row.entry.honest_score is not None]
    rows.sort(key=lambda row: row.entry.digest == digest)  # stable
    if not rows:
        text = (
            "No submission yet; `make predict` writes one." if has_test else "No test images, so nothing is submitted."
        )
        return Section("leaderboard", TITLE, SOURCES, [Text([text])])
    metric = rows[-1].entry.metric
    scored = [row for row in rows if row.public_score is not None and row.entry.metric == metric]
    text = (
        "No submission has a public score of Kaggle, so nothing is compared with the leaderboard. "
        "`make submit` sends the newest submission and waits for its score."
    )
    if scored:
        text = correlation_text(scored, public_share)
    choices, cells = choose_two(rows, changed), []
    for row, why in choices:
        entry = row.entry
        error = f" {plus_minus(entry.standard_error)}" if entry.standard_error is not None else ""
        honest = f"{entry.honest_score:.5f}{error} on {counted(entry.oof_rows, 'row')}{' (optimistic)' if entry.optimistic else ''}"
        public = f"{row.public_score:.5f}" if row.public_score is not None else "–"
        columns = {"select": entry.file, "why": why, "honest (training rows)": honest}
        cells.append({**columns, "public (other rows: test)": public})
    note = "Kaggle counts the better of two selected submissions. The private score is of rows that neither column has seen."
    first = choices[0][0]
    if elsewhere := len(rows) - len(comparable_with_newest(rows)):
        note += (
            f" {elsewhere} of {len(rows)} submissions do not compare with {first.entry.digest[:4]}: the honest score is on other rows, "
            "by another metric, optimistic or doubted."
        )
    if len(choices) < 2 and (other := best_elsewhere(rows, first)) is not None:
        pair = f"A={first.entry.digest[:8]} B={other.entry.digest[:8]}"
        note += f" `make compare-blends {pair}` compares {other.entry.digest[:4]} with {first.entry.digest[:4]} on their common rows."
    elif len(choices) < 2:
        note += " A second one needs another submission: other members, or another seed."
    table = Table.of(cells, 2, note, title="Which two submissions to select")
    return Section("leaderboard", TITLE, SOURCES, [Text([text]), table])


def correlation_text(rows: Sequence[ledger.Row], public_share: float) -> str:
    """How many public scores are outside the interval expected by chance, and the rank correlation with the honest scores."""
    honest, public, outside = [], [], 0
    for row in rows:
        band, score, public_score = ledger.noise_band(row.entry, public_share), row.entry.honest_score, row.public_score
        if band is not None and score is not None and public_score is not None:
            outside += not score + band[0] <= public_score <= score + band[1]
            honest.append(score)
            public.append(public_score)
    if not honest:
        return "No public score has an interval that is expected by chance."
    count, correlation = len(honest), f"A rank correlation needs {ENOUGH} of them."
    if count >= ENOUGH:
        # Spearman's rank correlation of all points, which come first, and of resamples.
        draws = np.vstack([np.arange(count), np.random.default_rng(0).integers(0, count, (RESAMPLES, count))])
        ranks = [pd.DataFrame(np.array(scores)[draws]).rank(axis=1) for scores in (honest, public)]
        rho, *values = ranks[0].corrwith(ranks[1], axis=1)
        correlation = "Their rank correlation is undefined: all scores of one kind are equal."
        if np.isfinite(rho):
            low, high = np.nanquantile(values, [0.025, 0.975])
            interval = f"bootstrap 95 % interval {low:+.2f} to {high:+.2f}, n = {count}"
            correlation = f"Rank correlation {rho:+.2f} ({interval})."
    text = (
        f"{counted(count, 'submission')} with a public score; {outside} of them {'is' if outside == 1 else 'are'} outside the interval "
        f"expected by chance (95 %, if {public_share:.0%} of the test rows count). {correlation}"
    )
    if len(sizes := sorted({row.entry.oof_rows for row in rows})) > 1:
        text += f" Their honest scores are on {' or '.join(f'{size:,}' for size in sizes)} training rows, so not all compare."
    return text


def comparable_with_newest(rows: Sequence[ledger.Row]) -> list[ledger.Row]:
    """Submissions with an honest score by the metric and on the rows of the newest one that is neither optimistic nor doubted.

    Without such a one: of the newest of all, which alone is returned if it is doubted.
    """
    trusted = [row for row in rows if not row.entry.is_doubted]
    newest_row = ([row for row in trusted if not row.entry.optimistic] or trusted or list(rows))[-1]
    newest = newest_row.entry
    if newest.is_doubted:
        return [newest_row]
    same_part = [
        row for row in rows if (row.entry.oof_rows, row.entry.optimistic) == (newest.oof_rows, newest.optimistic)
    ]
    return [row for row in same_part if on_same_rows(row.entry, newest)]


def choose_two(rows: Sequence[ledger.Row], changed: Changed) -> list[tuple[ledger.Row, str]]:
    """The submission with the best honest score, and a second one that is as good within noise, each with the reason.

    The second is the best public score among those within one standard error of the first; without public scores, the one
    that differs from the first in most rows, which hedges; where that is unknown, the next best. Only submissions that are
    comparable with the newest take part, and partial ones only if there are no others. None is the second if none is as good within
    noise while others do not compare: one of these may be better.
    """
    rows = [row for row in rows if not row.entry.partial] or rows  # a complete one scores more on test rows
    same = comparable_with_newest(rows)
    sign = metric_named(same[-1].entry.metric).sign

    def honest(row: ledger.Row) -> float:
        return sign * (row.entry.honest_score if row.entry.honest_score is not None else -np.inf)

    first = max(reversed(same), key=honest)  # the newest of equal ones
    error = first.entry.standard_error or 0.0
    doubt = "; DOUBTED, see the warnings above" if first.entry.is_doubted else ""
    others = [row for row in same if row is not first]
    near = [row for row in others if honest(row) >= honest(first) - error]
    is_alone = best_elsewhere(rows, first) is None
    if not others:
        return [(first, ("the only submission" if is_alone else "the only submission on these rows") + doubt)]
    chosen = (first, f"the best honest score; {counted(len(near), 'other')} within its standard error")
    public = [(sign * row.public_score, row) for row in near if row.public_score is not None]
    if public:
        _, row = max(public, key=lambda pair: pair[0])
        return [chosen, (row, "the best public score among those within one standard error of the first")]
    shares = [(share, row) for row in near if (share := changed(first.entry.file, row.entry.file)) is not None]
    if shares:
        share, row = max(shares, key=lambda pair: pair[0])
        why = f"as good within noise, and differs most from the first ({share:.1%} of the rows): a hedge"
        return [chosen, (row, why)]
    if not near and not is_alone:
        return [chosen]
    row = max(reversed(others), key=honest)
    return [chosen, (row, "the next best honest score" + ("" if near else ", more than one standard error below"))]


def best_elsewhere(rows: Sequence[ledger.Row], first: ledger.Row) -> ledger.Row | None:
    """Of the submissions that do not compare with `first` and are not doubted the best by its metric, else the newest."""
    comparable = comparable_with_newest(rows)
    others = [row for row in rows if row not in comparable and not row.entry.is_doubted]
    metric = metric_named(first.entry.metric)
    honest = [row for row in others if row.entry.metric == metric.name and not row.entry.optimistic]
    newest = next(reversed(others), None)
    return max(honest, key=lambda row: metric.sign * (row.entry.honest_score or 0.0), default=newest)


def ledger_section(rows: Sequence[ledger.Row], public_share: float, metric: str, looks: int) -> Section | None:
    """All submissions.  metric: of Kaggle's scores.  looks: how often `make grade` opened the private solution."""
    if not rows:
        return None
    table = ledger.table(rows, public_share, metric)
    columns = list(table[0])
    note = (
        "cv and honest: on training rows; cv on those the blend was chosen on. public and private: on test rows. gap: public minus "
        f"honest. noise: 95 % interval of the gap by chance, if {public_share:.0%} of the test rows count (kaggle.public_share). "
        f"{ledger.honest_rows_text(rows)}"
    ).rstrip()
    cells = [list(line.values()) for line in reversed(table)]
    blocks: list[Block] = [Table(columns, cells, columns.index("cv"), note)]
    if looks:
        opened = f"The private solution was opened {counted(looks, 'time')} (make grade): "
        blocks.append(Text([opened + "the more often, the more optimistic its best score."]))
    return Section("ledger", "Submissions", "submissions/ledger.jsonl · make submit, make submissions", blocks)

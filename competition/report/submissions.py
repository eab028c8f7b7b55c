"""The report's section on submissions: honest against public scores, and which two to select on Kaggle."""

from collections.abc import Sequence

from competition.config.errors import counted
from competition.config.params import Params
from competition.ensemble.metrics import metric_named
from competition.report.page import Section, Table, Text
from competition.report.repeated_choices import on_same_rows
from competition.report.terminal import plus_minus
from competition.submission import ledger

TITLE, SOURCES = "Submissions", "submissions/ledger.jsonl · make submit, make submissions"
NO_SCORE = (
    "No submission has a public score of Kaggle. `make submit` sends the submission of the current parameters and waits for "
    "its score."
)


def leaderboard_section(
    rows: Sequence[ledger.SubmissionState],
    params: Params,
    has_test: bool,
    digest: str = "",
    unscored: str = NO_SCORE,
) -> Section:
    """Honest against public scores, and the choice of two submissions; one sentence without a submission file.

    rows: of the competition of `params`.  has_test: it has test images.  digest: of the page's submission, which counts as the newest.
    unscored: what is said if no row has a public score.
    """
    rows = [row for row in rows if row.entry.test_rows and row.entry.honest_score is not None]
    rows.sort(key=lambda row: row.entry.digest == digest)  # stable
    if not rows:
        text = (
            "No submission yet; `make predict` writes one." if has_test else "No test images, so nothing is submitted."
        )
        return Section("leaderboard", TITLE, SOURCES, [Text([text])])
    choices, cells, public_share = choose_two(rows, params), [], params.kaggle.public_share
    for row, why in choices:
        entry = row.entry
        error = f" {plus_minus(entry.standard_error)}" if entry.standard_error is not None else ""
        honest = f"{entry.honest_score:.4f}{error} on {counted(entry.oof_rows, 'row')}{' (optimistic)' if entry.optimistic else ''}"
        on_test = [("public", row.public_score), ("private", row.private_score)]
        shown = [f"{part} {score:.5f}" for part, score in on_test if score is not None] or ["–"]
        shown += ["(make grade)"] if row.state == ledger.GRADED else []
        columns = {"submission": entry.file, "why": why, "honest (training rows)": honest}
        cells.append({**columns, "other rows: test": " ".join(shown)})
    note = "On Kaggle the better of two selected submissions counts. The private score there is of rows unseen so far."
    if elsewhere := len(rows) - len(comparable_with_newest(rows)):
        note += (
            f" {elsewhere} of {len(rows)} submissions do not compare with {choices[0][0].entry.digest[:4]}: the honest score is on other "
            "rows, in folds of other groups, by another metric, optimistic or doubted. `make compare-blends` compares two of them on "
            "their common rows."
        )
    if refuted := sum(is_refuted(row, params) for row in comparable_with_newest(rows)):
        note += f" {counted(refuted, 'submission')} with a public score worse than chance explains come last."
    table = Table.of(cells, 2, note, title="The first choices by honest score")
    return Section("leaderboard", TITLE, SOURCES, [Text([public_scores_text(rows, public_share) or unscored]), table])


def public_scores_text(rows: Sequence[ledger.SubmissionState], public_share: float) -> str:
    """How many public scores are outside the interval that chance explains around the honest score; "" without one."""
    outside = []
    for row in rows:
        band, honest = ledger.noise_band(row.entry, public_share), row.entry.honest_score
        if band and honest is not None and row.public_score is not None and row.entry.metric == rows[-1].entry.metric:
            outside.append(not honest + band[0] <= row.public_score <= honest + band[1])
    if not outside:
        return ""
    return (
        f"{counted(len(outside), 'submission')} with a public score; {sum(outside)} outside the interval expected by chance around the "
        f"honest score (95 %, if {public_share:.0%} of the test rows count)."
    )


def comparable_with_newest(rows: Sequence[ledger.SubmissionState]) -> list[ledger.SubmissionState]:
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


def is_refuted(row: ledger.SubmissionState, params: Params) -> bool:
    """Whether the public score is worse than chance explains around the honest one."""
    band, honest = ledger.noise_band(row.entry, params.kaggle.public_share), row.entry.honest_score
    if band is None or honest is None or row.public_score is None:
        return False
    is_greater_better = metric_named(row.entry.metric, params.plugins).sign > 0
    return row.public_score < honest + band[0] if is_greater_better else row.public_score > honest + band[1]


def choose_two(rows: Sequence[ledger.SubmissionState], params: Params) -> list[tuple[ledger.SubmissionState, str]]:
    """The submission with the best honest score, and a second one, each with the reason.

    The second is the best public score among those within one standard error of the first, else the next best honest score. Only
    submissions that are comparable with the newest take part; partial ones, and those whose public score is worse than chance explains,
    only if there are no others.
    """
    rows = [row for row in rows if not row.entry.partial] or rows  # a complete one scores more on test rows
    same = comparable_with_newest(rows)
    same = [row for row in same if not is_refuted(row, params)] or same
    sign = metric_named(same[-1].entry.metric, params.plugins).sign
    # The best first, the newest of equal ones.
    ranked = sorted(((sign * (row.entry.honest_score or 0.0), n) for n, row in enumerate(same)), reverse=True)
    (best, number), *others = ranked
    first = same[number]
    if not others:
        doubt = "; DOUBTED, see the warnings above" if first.entry.is_doubted else ""
        return [(first, f"the only submission on these rows{doubt}")]
    near = [same[n] for score, n in others if score >= best - (first.entry.standard_error or 0.0)]
    chosen = (first, f"the best honest score; {counted(len(near), 'other')} within its standard error")
    public = [(sign * row.public_score, row) for row in near if row.public_score is not None]
    if public:
        _, row = max(public, key=lambda pair: pair[0])
        return [chosen, (row, "the best public score among those within one standard error of the first")]
    why = "the next best honest score" + ("" if near else ", more than one standard error below")
    return [chosen, (same[others[0][1]], why)]

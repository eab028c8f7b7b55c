"""Which two submissions are selected, and the rank correlation of honest and public scores."""

from dataclasses import replace

import numpy as np
import pytest
from builders import ledger_entry
from scipy.stats import spearmanr

from competition.ensemble.expected_score import ExpectedScore
from competition.report.submissions import choose_two, leaderboard_section, rank_correlation
from competition.submission import ledger
from competition.submission.ledger import Row

ENTRY = ledger_entry(oof_rows=1000, test_rows=500)


def row(name: str, honest: float, public: float | None = None, **changes) -> Row:
    entry = replace(ENTRY, digest=name * 12, file=f"{name}.csv", honest_score=honest, **changes)
    return Row(entry, "made", "", public, None, "", "2026-01-02T03:04:05Z")


def chosen(rows, changed=lambda a, b: None) -> list[str]:
    return [row.entry.file[0] for row, _ in choose_two(rows, changed)]


def test_the_best_honest_score_comes_first_and_the_best_public_score_within_noise_second() -> None:
    rows = [row("a", 0.900, 0.93), row("b", 0.905, 0.91), row("c", 0.880, 0.99), row("d", 0.901, 0.92)]
    assert chosen(rows) == ["b", "a"]  # c has the best public score, but is worse by more than a standard error


def test_without_public_scores_the_second_is_the_one_that_differs_most() -> None:
    rows = [row("a", 0.900), row("b", 0.905), row("d", 0.901)]
    shares = {("b.csv", "a.csv"): 0.02, ("b.csv", "d.csv"): 0.07}
    assert chosen(rows, lambda a, b: shares[a, b]) == ["b", "d"]
    assert chosen(rows[:1]) == ["a"]


def test_a_smaller_log_loss_is_better_and_optimistic_scores_are_not_compared() -> None:
    rows = [
        row("a", 0.30, metric="log_loss"),
        row("b", 0.29, metric="log_loss"),
        row("c", 0.1, metric="log_loss", optimistic=True),
    ]
    assert chosen(rows) == ["b", "a"]


def test_the_rank_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 5, 20).astype(float), rng.random(20)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert np.isnan(rank_correlation(np.ones(5), b[:5]))


def test_a_public_score_outside_the_interval_of_chance_is_counted() -> None:
    expected = (ExpectedScore(500, 0.90, 0.02, 0.01, 1.0),)
    rows = [row("a", 0.90, 0.905, expected=expected), row("b", 0.91, 0.60, expected=expected)]
    section = leaderboard_section(rows, 0.3, lambda a, b: None, True)
    assert "2 submissions with a public score; 1 of them is outside" in section.blocks[0].lines[0]


def test_honest_scores_of_other_rows_are_not_compared_and_every_score_names_its_rows() -> None:
    rows = [row("a", 0.999, oof_rows=400), row("b", 0.90), row("c", 0.90), row("d", 0.95, optimistic=True)]
    assert chosen(rows) == ["c", "b"]
    table = leaderboard_section(rows, 0.3, lambda a, b: None, True).blocks[-1]
    assert all("on 1,000 rows" in cells[2] for cells in table.rows)
    assert "2 of 4 submissions do not compare with cccc" in table.note
    assert [why for _, why in choose_two(rows[:2], lambda a, b: None)] == ["the only submission on these rows"]


def test_a_worse_submission_is_no_second_choice_while_others_do_not_compare() -> None:
    elsewhere = [row("a", 0.91, oof_rows=400), row("c", 0.97, oof_rows=400), row("d", 0.92, oof_rows=400)]
    doubted, other_metric = row("e", 1.0, is_doubted=True), row("f", 0.99, metric="accuracy")
    worse, best = row("b", 0.85), row("g", 0.95)
    rows = [*elsewhere, doubted, other_metric, worse, best]
    table = leaderboard_section(rows, 0.3, lambda a, b: None, True).blocks[-1]
    assert [cells[0] for cells in table.rows] == ["g.csv"]
    assert "`make compare-blends A=gggggggg B=cccccccc` compares cccc with gggg on their common rows" in table.note
    assert chosen([worse, best]) == ["g", "b"]  # nothing else is known that may be better


def test_a_doubted_submission_is_never_recommended_and_says_so_where_it_is_alone() -> None:
    rows = [row("a", 0.90), row("b", 0.999, is_doubted=True), row("c", 0.90), row("d", 1.0, is_doubted=True)]
    assert chosen(rows) == ["c", "a"] and chosen(rows[:2]) == ["a"]
    assert [why for _, why in choose_two(rows[1:2], lambda a, b: None)] == [
        "the only submission; DOUBTED, see the warnings above"
    ]
    assert [line["honest"].endswith(" DOUBTED") for line in ledger.table(rows, 0.3, "macro_f1")] == [
        False,
        True,
        False,
        True,
    ]

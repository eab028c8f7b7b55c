"""Count repeated choices on the same rows, and estimate the optimism of the best result.

Counted from the ledger: blends scored on the same training rows, submissions with a public score.

Selecting the best of n scores on the same rows makes its score optimistic. The noise of the rows is resampled around
estimates of the true scores; the expected optimism is the mean over resamples of the winner's score minus its true score.
The observed scores are shrunk first, because their spread already contains the noise (empirical Bayes). Equally good
candidates then count as equal, and a clearly best candidate has no optimism. Much worse candidates, which noise cannot make
the best, are left out: their distance says nothing about how the others differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from competition.config.errors import UserError, counted
from competition.config.params import Params
from competition.ensemble.bootstrap import Evaluation, resampled
from competition.ensemble.metrics import Metric, metric_named
from competition.prepare.prepared import Prepared
from competition.report.stored_blends import blend_of, shared_rows, stored_output
from competition.submission.ledger import Entry, Ledger, entry_of_blend, of_competition, read, rows

RESAMPLES = 200  # standard error of the mean below a tenth of the noise
CONTENDER = 3.0  # a candidate worse by more standard errors of the difference is never the best by chance
MOST_BLENDS = 30  # only the newest are compared
MOST_VALUES = 200_000_000  # stored probabilities in total; bounds time and memory


@dataclass(frozen=True)
class Optimism:
    """The expected optimism of the best of n scores."""

    value: float
    is_bound: bool  # True: `value` is an upper bound, because too few outputs are stored to estimate their correlation


@dataclass(frozen=True)
class RepeatedChoices:
    """Numbers of choices, and the expected optimism of the best of them."""

    blends: int  # distinct blends on the same rows
    oof_rows: int  # number of these rows
    submissions: int  # with a public score
    blend_optimism: Optimism
    public_optimism: Optimism

    def lines(self) -> list[str]:
        """Lines for the terminal; empty if nothing was chosen repeatedly, or makes nothing better."""
        lines = []
        blends = f"{counted(self.blends, 'different blend')} on these {counted(self.oof_rows, 'row')}; the best of their honest scores"
        public = f"{self.submissions} public scores; the best of them"
        counts, optimisms = (self.blends, self.submissions), (self.blend_optimism, self.public_optimism)
        for text, count, optimism in zip((blends, public), counts, optimisms):
            if count > 1 and optimism.value >= 0.00005:  # more than 0 as it is printed
                bound = "at most " if optimism.is_bound else ""
                lines.append(f"repeated choices: {text} is expected to be {bound}{optimism.value:.4f} too good")
        return lines


def choices_lines(
    work: Path,
    submissions: Path,
    params: Params,
    prepared: Prepared | None,
    result: Mapping[str, Any] | None = None,
) -> list[str]:
    """Lines on repeated choices on the rows of a blend; those of the newest submission without one.

    prepared: None = no prepared data; the optimism is then an upper bound.  result: of the blend's manifest.
    """
    ledger = of_competition(read(submissions / "ledger.jsonl"), params.competition.name, params.competition.slug)
    current = next(reversed(ledger.entries), None)
    if result is not None:
        current = entry_of_blend(ledger.entries, result)
    if current is None:
        return []
    share, seed = params.kaggle.public_share, params.honest.seed
    return repeated_choices(ledger, current, work / "blends", prepared, share, seed).lines()


def repeated_choices(
    ledger: Ledger, current: Entry, blends: Path, prepared: Prepared | None, public_share: float, seed: int
) -> RepeatedChoices:
    """Count the choices behind a submission.

    ledger: of this competition.  current: the submission.  blends: the folder of stored blends.
    Blends of one submission that differ in their honest scores are counted each; one that was made again is counted once.
    """
    metric = metric_named(current.metric)
    results = {(entry.digest, entry.honest_score): entry for entry in ledger.entries if on_same_rows(entry, current)}
    same = list(results.values())
    of_metric = tuple(entry for entry in ledger.entries if entry.metric == current.metric)
    scored = [row for row in rows(replace(ledger, entries=of_metric)) if row.public_score is not None]
    public_rows = max(1, round(current.test_rows * public_share))
    public_scores = [metric.sign * row.public_score for row in scored if row.public_score is not None]
    error = current.standard_error or 0.0
    public_error = error * (current.oof_rows / public_rows) ** 0.5
    stored = _Blends(blends, prepared, metric, seed)
    of_blends = _optimism(stored, same, error)
    of_public = _optimism(stored, [row.entry for row in scored], public_error, public_rows, public_scores)
    return RepeatedChoices(len(same), current.oof_rows, len(scored), of_blends, of_public)


def on_same_rows(entry: Entry, current: Entry) -> bool:
    """Return True if two entries are scored by the same metric on the same rows, honestly.

    The digest is of the rows that the blend was fitted on, of which those that chose hyperparameters have no score.
    """
    if entry.is_doubted or (entry.metric, entry.oof_rows) != (current.metric, current.oof_rows):
        return False  # a doubted score is none to choose by
    return entry.oof_digest == current.oof_digest or not (entry.oof_digest and current.oof_digest)


@dataclass(frozen=True)
class _Blends:
    """Where the outputs of blends are stored, and what they are of."""

    folder: Path
    prepared: Prepared | None
    metric: Metric
    seed: int


def _optimism(
    blends: _Blends,
    entries: Sequence[Entry],
    single_error: float,
    sample_rows: int | None = None,
    known_scores: Sequence[float] | None = None,
) -> Optimism:
    """Expected optimism of the best of these submissions.

    single_error: standard error of one score, which gives the bound if fewer than two outputs are stored.
    sample_rows: rows of one resample; None = all.  known_scores: of the entries, greater is better;
    None = scores on the shared rows.
    """
    if len(entries) < 2:
        return Optimism(0.0, False)
    bound, prepared, metric = (
        Optimism(normal_optimism(len(entries), single_error), True),
        blends.prepared,
        blends.metric,
    )
    folders = [folder for entry in entries if (folder := blend_of(blends.folder, entry)) is not None][-MOST_BLENDS:]
    if prepared is None or len(folders) < 2:
        return bound
    classes = len(prepared.competition.classes)
    try:
        shared = shared_rows(folders, prepared)
        if not metric.needs_labels:
            folders = folders[-max(1, MOST_VALUES // (len(shared.ids) * classes)) :]
        outputs = [stored_output(folder, shared.ids, metric, classes) for folder in folders]
    except UserError:  # the blends are of other data
        return bound
    if len(outputs) < 2:
        return bound
    evaluation = Evaluation(metric, classes, RESAMPLES, blends.seed)
    draws = np.stack(resampled(shared.labels, outputs, evaluation, sample_rows))
    if len(outputs) < len(entries):
        noise = (draws - draws.mean(1, keepdims=True)).var(0, ddof=1).mean()  # what is common to all outputs cancels
        return Optimism(normal_optimism(len(entries), float(np.sqrt(noise))), False)
    scores = known_scores or [metric.evaluate(shared.labels, output, classes) for output in outputs]
    return Optimism(expected_optimism(np.array(scores), draws), False)


def expected_optimism(scores: np.ndarray, resampled: np.ndarray) -> float:
    """E[score of the best of n candidates - its true score], in units of the score; 0 for one candidate.

    scores: (n,) observed on the same rows, greater is better.  resampled: (n, R) on R resamples of these rows, the same
    resamples for all candidates.
    """
    noise, best = resampled - resampled.mean(1, keepdims=True), scores.argmax()
    is_contender = scores >= scores[best] - CONTENDER * (noise - noise[best]).std(1)
    scores, noise = scores[is_contender], noise[is_contender]
    if len(scores) < 2:
        return 0.0
    # The scores are shrunk towards their mean by the share of their variance that is noise; noise common to all cancels.
    observed, of_noise = float(scores.var(ddof=1)), float(noise.var(0, ddof=1).mean())
    signal_share = max(0.0, 1.0 - of_noise / observed) if observed > 0 else 0.0
    shrunk = scores.mean() + signal_share * (scores - scores.mean())
    winners = (shrunk[:, None] + noise).argmax(0)  # (R,)
    return max(0.0, float(noise[winners, np.arange(len(winners))].mean()))


def normal_optimism(candidates: int, noise: float) -> float:
    """Expected maximum of n independent normal deviations, for candidates without stored outputs.

    noise: standard deviation of one candidate's score.
    """
    if candidates < 2:
        return 0.0
    from scipy.special import ndtr

    grid = np.linspace(-8.0, 8.0, 4001)  # the mean of a variable up to 8 is 8 less the integral of its distribution
    return noise * float(8.0 - np.trapezoid(ndtr(grid) ** candidates, grid))

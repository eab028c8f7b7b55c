"""The report's section on what to do next, ranked by what it can gain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from competition.budget.portfolio import FEW_ROWS
from competition.config.errors import counted
from competition.config.params import Params
from competition.config.params_file import BUDGET_FILE
from competition.ensemble.metrics import Metric
from competition.prepare.prepared import Prepared
from competition.report.members import TrainedFold, by_epoch, overfitting
from competition.report.page import Section, Table, Text
from competition.report.terminal import Scores, gain, gain_of_equal_weights
from competition.submission import ledger

MOST = 8


@dataclass(frozen=True)
class Step:
    """gain: in the metric's direction, greater is better; None = unknown.  basis: where the gain comes from, or why the step is due."""

    what: str
    command: str
    gain: float | None
    basis: str


def next_steps_section(steps: Sequence[Step]) -> Section:
    """The steps with the largest gain first."""
    if not steps:
        none = "No learning curve, score or missing result suggests one. Other members gain most where they err on other rows."
        return Section("next", "Next steps", "the sections below", [Text([none])])
    rows = []
    for step in sorted(steps, key=lambda step: np.inf if step.gain is None else -step.gain)[:MOST]:
        rows.append(
            [step.what, step.command, step.basis, "unknown" if step.gain is None else f"about {step.gain:+.4f}"]
        )
    note = (
        "A gain is read off learning curves or scores of the same rows, so it is optimistic. Unknown gains come last."
    )
    table = Table(["step", "how", "where the number comes from", "gain"], rows, 3, note)
    return Section("next", "Next steps", "the sections below", [table])


def blend_steps(scores: Scores) -> list[Step]:
    """Equal weights, where they are better than the fitted ones by more than noise.  scores: as in scores.json."""
    if (better := gain_of_equal_weights(scores)) is None:
        return []
    rows = counted(scores["honest_rows"], "row")
    basis = f"both honest scores, {rows}, {gain(better)}; chosen afterwards, so optimistic"
    command = 'make blend SET="blend.methods=[equal]"'
    return [Step("mix the members with equal weights", command, better.value, basis)]


def training_steps(models_of: Mapping[str, Sequence[TrainedFold]], metric: Metric) -> list[Step]:
    """What the learning curves say: train longer, or shorter and with more regularisation."""
    steps = []
    for name, models in models_of.items():
        if not models:
            continue
        epochs = f"members.{name.split()[0]}.train.epochs"  # of the member; a title may have a seed behind its name
        histories = [model.history for model in models]
        scores, losses = metric.sign * by_epoch(histories, "held_out"), by_epoch(histories, "held_out_loss")
        scored = np.flatnonzero(np.isfinite(scores).all(1))
        if len(scored) < 2 or scores.shape[1] < 2 or scored[-1] < len(scores) - 1:
            continue
        last = scores[-1] - scores[scored[-2]]
        error = float(last.std(ddof=1) / np.sqrt(len(last)))
        start = overfitting(losses)
        if start is not None and start.is_clear:
            what, how = (
                f"{name} overfits after epoch {start.best}",
                f'make train predict SET="{epochs}={start.best}", or more augmentation or dropout',
            )
            steps.append(Step(what, how, None, "by the held-out loss"))
        elif last.mean() > 2 * error > 0:
            basis = f"since epoch {scored[-2] + 1} it still gained {last.mean():+.4f} ± {error:.4f} (over folds), of its held-out mean"
            how = f'make train predict SET="{epochs}={round(len(scores) * 1.5)}"'
            steps.append(Step(f"train {name} longer", how, float(last.mean()), basis))
    return steps


def open_steps(
    params: Params,
    prepared: Prepared,
    models_of: Mapping[str, Sequence[TrainedFold]],
    submitted: Sequence[ledger.SubmissionState],
    spreads: Mapping[str, float],
    has_study: bool,
) -> list[Step]:
    """What has not been done yet; its gain is unknown. Members with external predictions are trained elsewhere.

    spreads: member -> its spread over seeds, of those with a seed study.  has_study: some member uses a study.
    """
    steps = []
    missing = params.prepare.folds * len(models_of) - sum(len(models) for models in models_of.values())
    if missing:
        steps.append(Step("train the missing fold models", "make train predict", None, f"{missing} missing"))
    if len(params.members) + len(params.external) < 2:
        steps.append(Step("add a second member", "members: in the parameters", None, "a blend needs at least two"))
    trained = [name for name, member in params.members.items() if member.head is None]
    if params.members and not trained and not prepared.folder.with_name(BUDGET_FILE.parent.name).is_dir():
        photos = round(FEW_ROWS * params.prepare.folds / (params.prepare.folds - 1), -2)
        basis = f"features are frozen: no larger networks are tried, and no fine-tuning, which needs some {photos:.0f} photos"
        steps.append(Step("spend half an hour", "make train predict HOURS=0.5", None, basis))
    if trained and not has_study:
        steps.append(Step("tune the learning rate", 'make tune SET="tune.trials=20"', None, "no study is used"))
    if unmeasured := [name for name in trained if name not in spreads]:
        basis = "how much its score varies with the training seed is unknown, so no ± counts it"
        steps.append(Step("measure the noise of training", f"make noise MEMBER={unmeasured[0]}", None, basis))
    with_test = [row for row in submitted if row.entry.test_rows]
    if with_test and prepared.competition.slug and all(row.public_score is None for row in with_test):
        steps.append(Step("submit", "make submit", None, "no submission has a public score"))
    return steps

"""What `make train` and `make blend` say about scores, without trained members."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import competition, params

from competition.config.digests import to_plain
from competition.ensemble.chain import Chain
from competition.ensemble.external_check import OTHER_IDS, doubts_of
from competition.ensemble.honest_score import fit_and_score_chain
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested_cross_fit import OofRows
from competition.ensemble.settings import chain_settings
from competition.ensemble.stored_predictions import ViewPredictions
from competition.ensemble.trivial import trivial_score
from competition.files.manifest import write_manifest
from competition.prepare.prepared import Prepared
from competition.report.overview import score_figures
from competition.report.scores_json import scores_of
from competition.report.terminal import summary_rows
from competition.workspace.dependencies import fold_manifest_path
from competition.workspace.ensemble_inputs import EnsembleInputs
from competition.workspace.runs import runs_of
from competition.workspace.scores import summary_lines, trivial_text
from competition.workspace.workspace import Workspace
from pipelines.main_job.blend import caution_lines, conclusion

LABELS = np.arange(60) % 3
IDS = np.array([f"i{n:02}" for n in range(60)])


def member(names: tuple[str, ...], right: tuple[float, ...]) -> ViewPredictions:
    """Views that are correct for the first `right` (a share) of the rows."""
    probs = np.full((60, len(names), 3), 0.1, np.float16)
    for view, share in enumerate(right):
        predicted = np.where(np.arange(60) < 60 * share, LABELS, (LABELS + 1) % 3)
        probs[np.arange(60), view, predicted] = 0.8
    return ViewPredictions(IDS, names, probs)


def scores_of_blend(
    metric: str, targets: np.ndarray, predictions: ViewPredictions, tuned: tuple[int, ...] = ()
) -> tuple[dict[str, Any], Chain]:
    """scores.json and the chain of one member, with `tuned` of four folds."""
    parameters = params("honest.resamples=20 blend.rounds=1 blend.bags=1 blend.methods=[equal]")
    settings, folds, oof = chain_settings(parameters, METRICS[metric]), np.arange(60) // 3 % 4, {"m": predictions}
    result = fit_and_score_chain(OofRows(oof, targets, folds, tuned_folds=tuned), settings, parameters.honest)
    rows = EnsembleInputs(IDS, targets, folds, oof, IDS[:20], {}, tuple(range(4)), tuned, ())
    views = {"m": {"effect": result.view_effects["m"]}}
    return to_plain({**scores_of(parameters, result, METRICS[metric], rows), "views": views}), result.chain


def test_a_member_is_scored_by_its_identity_view_at_any_position() -> None:
    shifted_first = member(("shift_up", "identity"), (0.2, 0.9))
    score = METRICS["macro_f1"].evaluate(LABELS, shifted_first.view("identity").argmax(1), 3)
    assert scores_of_blend("macro_f1", LABELS, shifted_first)[0]["members"]["m"]["score"] == score


@pytest.mark.parametrize(
    ("tuned", "words"),
    [((), "on 60 rows; "), ((1,), "on 45 of 60 rows (the others chose hyperparameters)"), ((0, 1, 2, 3), "OPTIMISTIC")],
)
def test_the_conclusion_names_the_rows_it_rests_on_and_what_is_doubted(tuned: tuple[int, ...], words: str) -> None:
    scores, _ = scores_of_blend("macro_f1", LABELS, member(("identity",), (0.8,)), tuned)
    scores["leaderboard_band"] = [0.8, 0.9]
    assert words in conclusion(scores) and "NOT HONEST" not in conclusion(scores) and not doubts_of(scores)
    is_cautious = any("no row is left that took no part in any choice" in line for line in caution_lines(scores))
    assert is_cautious == (words == "OPTIMISTIC")
    unknown = scores | {"notes": ["x: folds unknown: it cannot"]}
    assert "; folds of x unknown; expected on 20 test rows: 0.8000 to 0.9000" in conclusion(unknown)
    assert not doubts_of(unknown)
    for note, doubt in (
        ("not out-of-fold? its confidence is 0.99", "NOT HONEST if the models of x were trained on these rows"),
        (f"its test predictions {OTHER_IDS}", "NO EXPECTATION for test rows: the test predictions of x seem to have"),
        ("other folds than ours (...)", "; folds of x not those of the scored rows; NO EXPECTATION for test rows: "),
    ):
        doubted = scores | {"notes": [f"x: {note}"]}
        assert doubt in conclusion(doubted) and "0.8000 to 0.9000" not in conclusion(doubted) and doubts_of(doubted)
        figures = score_figures(doubted, [])
        assert conclusion(doubted).startswith("DOUBTED ") and figures[0].name.startswith("doubted ")
        assert figures[2].value == "unknown"


@pytest.mark.parametrize(
    ("metric", "targets", "output", "answer"),
    [
        ("macro_f1", LABELS, np.eye(3)[np.roll(LABELS, 1)], "classes drawn at random"),
        ("multilabel_macro_f1", np.eye(3, dtype=bool)[LABELS], np.tile([0.3, 0.7, 0.5], (60, 1)), "every label for"),
        ("rmse", LABELS, np.roll(LABELS, 7)[:, None], "the mean of all rows"),
    ],
)
def test_a_useless_result_of_every_kind_of_target_is_called_useless(metric, targets, output, answer) -> None:
    useless = ViewPredictions(IDS, ("identity",), output[:, None].astype(np.float32), METRICS[metric].target)
    scores, chain = scores_of_blend(metric, targets, useless)
    assert f"WARNING not better than an answer that looks at no row: {answer}" in conclusion(scores)
    assert "not better than an answer" in score_figures(scores, [])[0].note
    assert summary_rows(scores, chain, METRICS[metric])[0][-1] == "identity; not better than the trivial baseline"


def test_the_honest_score_of_a_single_member_has_a_row_of_its_own_where_its_views_change_it() -> None:
    noise = np.random.default_rng(0).normal(0, 1.5, (60, 2, 3))
    probs = np.exp(2 * np.eye(3)[LABELS][:, None] + noise)
    probs = (probs / probs.sum(2, keepdims=True)).astype(np.float32)
    views = ViewPredictions(IDS, ("identity", "flip_lr"), probs, "single")
    scores, chain = scores_of_blend("macro_f1", LABELS, views)
    member, with_views, trivial = summary_rows(scores, chain, METRICS["macro_f1"])
    assert with_views[0] == "with its views" and with_views[1].startswith(f"{scores['honest']:.4f} ±")
    assert not member[1].startswith(f"{scores['honest']:.4f} ") and trivial[0] == "trivial"


INDEX = pd.DataFrame({"part": "train", "label": [0, 1] * 5, "fold": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]})
PREPARED = Prepared(Path("data"), competition(metric="macro_f1"), INDEX, "d" * 64)


def test_the_mean_of_a_tuned_member_is_called_optimistic_and_stands_beside_the_trivial_baseline(tmp_path: Path) -> None:
    """Members cnn and small, each with fold models that score 0.90 to 0.94, the five or some; small is tuned on some folds."""
    for number, (tuned, folds, score, end_of_note) in enumerate(
        (
            ("", range(5), ": 5 folds, mean held-out score 0.9200 (from 0.9000 to 0.9400)", ""),
            ("0,1", [2], ": 1 fold, held-out score 0.9200", ""),  # that was not tuned
            ("0,1", [1], ": 1 fold, held-out score 0.9100 (optimistic in fold 1)", "without those rows"),
            ("0,1,2", range(5), "(from 0.9000 to 0.9400, optimistic in folds 0, 1, 2)", "without those rows"),
            ("0,1,2,3,4", range(5), "optimistic in folds 0, 1, 2, 3, 4)", "and no rows are left for one"),
        )
    ):
        parameters = params(f"tune.trials=0 members.small.tuned_folds=[{tuned}]")
        workspace = Workspace(tmp_path / str(number), parameters, loaded=PREPARED)
        for name, fold in product(("cnn", "small"), folds):
            path = fold_manifest_path(runs_of(workspace, name)[0], fold)
            path.parent.mkdir(parents=True)
            write_manifest(path, {}, [], {"metric": "macro_f1", "held_out": 0.9 + fold / 100}, {})
        cnn, small, *notes = summary_lines(workspace, ["cnn", "small"])
        of_folds = [PREPARED.competition.targets.of(INDEX["label"].to_numpy()[INDEX["fold"] == fold]) for fold in folds]
        trivial = np.mean([trivial_score(labels, METRICS["macro_f1"], 2)[1] for labels in of_folds])
        assert f"{score}; the trivial baseline's is {trivial:.4f}" in small and "optimistic" not in cnn
        assert len(notes) == bool(end_of_note)
        assert all("their means are not honest scores" in note and note.endswith(end_of_note) for note in notes)
    assert trivial_text(PREPARED, score=0.1).endswith("on 10 rows, NOT BEATEN")
    assert trivial_text(PREPARED, score=0.9).endswith("on 10 rows")

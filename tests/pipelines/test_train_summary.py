"""What `make train` says about means over folds of which some chose hyperparameters."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from builders import competition, params

from competition.ensemble.metrics import metric_named
from competition.ensemble.trivial import trivial_score
from competition.files.manifest import write_manifest
from competition.prepare.prepared import Prepared
from competition.workspace.dependencies import fold_manifest_path
from competition.workspace.runs import runs_of
from competition.workspace.scores import summary_lines
from competition.workspace.workspace import Workspace

INDEX = pd.DataFrame({"part": "train", "label": [0, 1] * 5, "fold": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]})
PREPARED = Prepared(Path("data"), competition(metric="macro_f1"), INDEX, "d" * 64)


def summary(work: Path, sets: str, folds: Sequence[int] = range(5)) -> list[str]:
    """The summary of cnn and small, each with fold models that score 0.90 to 0.94, the five or some."""
    workspace = Workspace(work, params(f"tune.trials=0 {sets}"), loaded=PREPARED)
    for name in ("cnn", "small"):
        (run,) = runs_of(workspace, name)
        for fold in folds:
            path = fold_manifest_path(run, fold)
            path.parent.mkdir(parents=True)
            write_manifest(path, {}, [], {"metric": "macro_f1", "held_out": 0.9 + fold / 100}, {})
    return summary_lines(workspace, ["cnn", "small"])


def test_without_tuning_each_run_is_one_line_with_the_trivial_baseline_of_all_rows(tmp_path: Path) -> None:
    cnn, small = summary(tmp_path, "")
    assert cnn.startswith(
        "train cnn: 5 folds, mean held-out score 0.9200 (from 0.9000 to 0.9400); the trivial baseline"
    )
    labels = PREPARED.targets(INDEX["label"].to_numpy())
    score = trivial_score(labels, metric_named("macro_f1"), 2)[1]
    assert cnn.split("; ")[1] == f"the trivial baseline scores {score:.4f}"
    assert small.startswith("train small: 5 folds") and "optimistic" not in cnn + small


@pytest.mark.parametrize(
    ("tuned", "folds", "score", "end"),
    [
        ("0,1,2", range(5), "(from 0.9000 to 0.9400, optimistic in folds 0, 1, 2)", "without those rows"),
        ("0,1,2,3,4", range(5), "optimistic in folds 0, 1, 2, 3, 4)", "and no rows are left for one"),
        ("0,1", [1], ": 1 fold, held-out score 0.9100 (optimistic in fold 1)", "without those rows"),
    ],
)
def test_the_mean_of_a_tuned_member_is_called_optimistic_and_no_mean_an_honest_score(
    tmp_path: Path, tuned: str, folds: Sequence[int], score: str, end: str
) -> None:
    cnn, small, note = summary(tmp_path, f"members.small.tuned_folds=[{tuned}]", folds)
    assert score in small and "optimistic" not in cnn
    assert "so these means are not honest scores" in note and note.endswith(end)


def test_one_fold_that_was_not_tuned_is_not_doubted(tmp_path: Path) -> None:
    _, small = summary(tmp_path, "members.small.tuned_folds=[0,1]", folds=[2])
    assert ": 1 fold, held-out score 0.9200; the trivial baseline" in small

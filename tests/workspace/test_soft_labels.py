"""Every soft label comes from a teacher that was not trained on the student's held-out fold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
from builders import params

from competition.config.params import ExcludedFolds, Params
from competition.ensemble.predictions import ViewPredictions
from competition.prepare.adapter_types import Competition
from competition.prepare.prepared import Prepared
from competition.workspace.dependencies import fold_manifest_path, nested_teachers, soft_labels_path
from competition.workspace.features_and_soft_labels import load_soft_labels
from competition.workspace.runs import Run

FOLDS, ROWS = 3, 9
INDEX = pd.DataFrame(
    {
        "id": [f"i{n}" for n in range(ROWS)],
        "part": "train",
        "label": np.arange(ROWS) % 2,
        "fold": np.arange(ROWS) % FOLDS,
    }
)
PREPARED = Prepared(
    Path("data"), Competition("two", "", ("a", "b"), "accuracy", "label", "id", ("label",), ("0", "1")), INDEX, "d" * 64
)


def student_of(scheme: str, teachers: str = "[cnn]") -> Params:
    return params(f"prepare.folds=3 members.small.teacher='{teachers}' members.small.teacher_scheme={scheme}")


def save(path: Path, rows: np.ndarray, probability: float) -> None:
    """Write predictions of these rows, in reverse order, with `probability` for the first class."""
    ids = INDEX["id"].to_numpy(str)[rows][::-1]
    probs = np.tile(np.array([probability, 1 - probability], np.float16), (len(ids), 1, 1))
    ViewPredictions(ids, ("identity",), probs).save(path)


def probability_of(model: ExcludedFolds) -> float:
    """The probability that identifies a model in these tests."""
    return {0: 0.1, 1: 0.2, 2: 0.3, (0, 1): 0.4, (0, 2): 0.5, (1, 2): 0.6}[model]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folds = INDEX["fold"].to_numpy()
    for fold in range(FOLDS):
        save(soft_labels_path(run_in(tmp_path, "cnn"), fold).with_name("soft.npz"), folds != fold, probability_of(fold))
    for pair in ((0, 1), (0, 2), (1, 2)):
        oof = fold_manifest_path(run_in(tmp_path, "cnn"), pair).with_name("oof.npz")
        save(oof, np.isin(folds, pair), probability_of(pair))
    return tmp_path


def run_in(work: Path, name: str) -> Run:
    """A run without teachers, by the name of its member."""
    member = params().members["cnn"]
    return Run(name, member, FOLDS, {}, name, work / "members" / name / "0123456789ab", {}, name)


def label_by_fold(
    work: Path, settings: Params, fold: ExcludedFolds, runs_of: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> dict[int, float]:
    """Fold of the rows -> the soft label of their first class.  runs_of: teacher -> names of its runs, if there are several."""
    member = settings.members["small"]
    teachers = {
        teacher: tuple(run_in(work, name) for name in runs_of.get(teacher, [teacher])) for teacher in member.teacher
    }
    table = load_soft_labels(PREPARED, replace(run_in(work, "small"), member=member, teachers=teachers), fold)
    fold_of = dict(zip(INDEX["id"], INDEX["fold"], strict=True))
    labels = {fold_of[name]: round(float(p), 2) for name, p in zip(table.ids, table.probs[:, 0], strict=True)}
    assert len(table.ids) == 3 * len(labels)
    return labels


@pytest.mark.parametrize("fold", range(FOLDS))
def test_same_fold_takes_every_label_from_the_model_of_the_same_fold(work: Path, fold: int) -> None:
    other_folds = set(range(FOLDS)) - {fold}
    assert label_by_fold(work, student_of("same_fold"), fold) == dict.fromkeys(other_folds, probability_of(fold))


@pytest.mark.parametrize("fold", range(FOLDS))
def test_nested_takes_the_label_of_a_row_from_the_model_without_its_fold_and_the_students(work, fold):
    others = set(range(FOLDS)) - {fold}
    expected = {other: probability_of((min(other, fold), max(other, fold))) for other in others}
    assert label_by_fold(work, student_of("nested"), fold) == expected


def test_several_teachers_are_averaged_by_id(work: Path) -> None:
    rows = INDEX["fold"].to_numpy() != 1
    save(soft_labels_path(run_in(work, "wide"), 1).with_name("soft.npz"), rows, 0.8)
    settings = params(
        "prepare.folds=3 members.wide='{architecture: cnn, image_size: 32, alpha: 1.0, weights: none}' "
        "members.small.teacher='[cnn, wide]'"
    )
    assert label_by_fold(work, settings, 1) == {0: 0.5, 2: 0.5}
    save(soft_labels_path(run_in(work, "wide2"), 1).with_name("soft.npz"), rows, 0.4)
    # A teacher with two seeds counts as one: (0.2 + (0.8 + 0.4) / 2) / 2.
    assert label_by_fold(work, settings, 1, {"wide": ["wide", "wide2"]}) == {0: 0.4, 2: 0.4}


def test_a_kernel_gets_the_nested_teachers_of_the_folds_it_trains(work: Path) -> None:
    assert nested_teachers(student_of("nested"), {"small": [0]}) == [("cnn", (0, 1)), ("cnn", (0, 2))]
    assert nested_teachers(student_of("same_fold"), {"small": [0]}) == []

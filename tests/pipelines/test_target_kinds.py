"""Multi-label, ordinal and regression competitions: from a folder of PNGs and a CSV to a submission and an honest score."""

import csv
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.metrics import cohen_kappa_score, f1_score, root_mean_squared_error
from stages import ROOT, Workspace

import goldfold
from competition.ensemble.chain import Chain
from competition.ensemble.predictions import ViewPredictions, load_scores, mean_over_folds, mix_views
from competition.prepare.adapter_types import Competition

STAGES = ("download", "prepare", "train", "predict", "blend", "report")
COLOURS = np.array(["red", "green", "blue"])
TRAIN, TEST, SIZE = 120, 30, 16
PARAMS = """
extends: {root}/params.yaml
competition: {{name: small, adapter: folder, source: {source}}}
prepare: {{folds: 2}}
train:
  {{epochs: 6, batch: 20, learning_rate: 0.01, precision: float32, dropout: 0.0, shift: 0.0, zoom: 0.0, rotate: 0.0,
   brightness: 0.0, contrast: 0.0}}
members:
  slim: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none}}
{members}
predict: {{batch: 50, views: [identity, flip_lr]}}
blend: {{methods: [equal], rounds: 3, bags: 2}}
honest: {{resamples: 100}}
"""
Draw = Callable[[np.random.Generator, np.ndarray], str]  # draws on a noise image and returns its label


def coloured(rng: np.random.Generator, image: np.ndarray) -> str:
    chosen = rng.random(3) < [0.6, 0.4, 0.3]
    chosen[0] |= not chosen.any()
    image += 120 * chosen
    return " ".join(COLOURS[chosen])


def graded(rng: np.random.Generator, image: np.ndarray) -> str:
    grade = int(rng.integers(0, 4))
    image += 40 * grade
    return str(grade)


def measured(rng: np.random.Generator, image: np.ndarray) -> str:
    value = round(float(rng.uniform(1000, 1100)), 2)
    image += int(1.5 * (value - 1000))
    return str(value)


def workspace_of(folder: Path, draw: Draw, members: str = "", header: Sequence[str] = ("image", "target")) -> Workspace:
    """A workspace with drawn images, train.csv, sample_submission.csv and the private solution."""
    rng, source, rows = np.random.default_rng(0), folder / "source", []
    (source / "images").mkdir(parents=True)
    for n in range(TRAIN + TEST):
        image = rng.integers(0, 80, (SIZE, SIZE, 3))
        rows.append((f"i{n:03}", draw(rng, image)))
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(source / "images" / f"i{n:03}.png")
    train, test = rows[:TRAIN], rows[TRAIN:]
    tables = {
        "train.csv": [header, *train],
        "sample_submission.csv": [header, *((name, train[0][1]) for name, _ in test)],
        "private/solution.csv": [("id", "label", "usage"), *((*row, "Private") for row in test)],
    }
    (source / "private").mkdir()
    for name, lines in tables.items():
        with (source / name).open("w", newline="") as file:
            csv.writer(file).writerows(lines)
    (folder / "params.yaml").write_text(PARAMS.format(root=ROOT, source=source, members=members))
    return Workspace(folder)


def results(workspace: Workspace) -> tuple[dict, np.ndarray, pd.DataFrame, np.ndarray]:
    """scores.json, targets and honest_oof.csv of the out-of-fold rows, and their probabilities or values."""
    scores = json.loads((workspace.blend / "scores.json").read_text())
    competition = Competition.load(workspace.work / "data" / "competition.json")
    index = pd.read_csv(workspace.work / "data" / "index.csv", dtype={"id": str}).set_index("id")
    ids, probs = load_scores(workspace.blend / "honest_oof.npz")
    table = pd.read_csv(workspace.blend / "honest_oof.csv", keep_default_na=False).set_index("id").loc[ids]
    return scores, competition.targets.of(index["label"].loc[ids].to_numpy()), table, probs


def submitted(workspace: Workspace) -> pd.Series:
    newest = max(workspace.submissions.glob("*.csv"), key=lambda file: file.stat().st_mtime)
    return pd.read_csv(newest, dtype=str, keep_default_na=False).set_index("image")["target"]


def opened(workspace: Workspace) -> goldfold.Project:
    return goldfold.open(workspace.params, work=workspace.folder / "work")


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A multi-label competition with a student of `slim` and a member trained elsewhere."""
    folder = tmp_path_factory.mktemp("labels")
    members = (
        "  student: {architecture: cnn, image_size: 16, alpha: 0.25, weights: none, teacher: [slim], train: {seed: 8}}\n"
        f"  elsewhere: {{predictions: {{oof: {folder}/oof.csv, test: {folder}/test.csv}}}}"
    )
    workspace = workspace_of(folder, coloured, members)
    rng = np.random.default_rng(1)
    for part, first, count in (("oof", 0, TRAIN), ("test", TRAIN, TEST)):
        table = pd.DataFrame(rng.random((count, 3)), columns=sorted(COLOURS))
        table.insert(0, "id", [f"i{n:03}" for n in range(first, first + count)])
        table.to_csv(folder / f"{part}.csv", index=False)
    output = workspace.do_in_one_process(*STAGES)
    words = "elsewhere: whether its models were trained on the rows they predict is only checked for single labels"
    assert words in output
    return workspace


def test_a_multi_label_competition_ends_in_lists_and_a_score_equal_to_scikit_learns(labelled: Workspace) -> None:
    scores, targets, table, probs = results(labelled)
    decided = np.array([[str(c) in text.split() for c in range(3)] for text in table["label"].astype(str)])
    assert scores["metric"] == "multilabel_macro_f1"
    assert scores["honest"] == pytest.approx(f1_score(targets, decided, average="macro", zero_division=0), abs=1e-12)
    assert scores["honest"] > 0.9 and 0 < scores["standard_error"] < 0.1
    assert decided.any(1).all() and np.ptp(probs.sum(1)) > 0.5  # no empty list; probabilities of each label by itself
    lists = submitted(labelled)
    assert len(lists) == TEST and all(set(cell.split()) <= set(COLOURS) and cell for cell in lists)
    output = labelled.do_in_one_process("grade", "report", "submissions")
    private = output.split("private ")[1].split()[0]
    assert float(private) > 0.85 and f"<b>{private}" in (labelled.work / "report.html").read_text()
    assert "Leaks of external members not checked: elsewhere in " in output


def test_folds_runs_and_python_show_the_label_sets(labelled: Workspace) -> None:
    with (labelled.folder / "source" / "train.csv").open() as file:
        lists = dict(list(csv.reader(file))[1:])
    labelled.do("folds")
    folds = pd.read_csv(labelled.work / "folds.csv", dtype=str)
    assert {name: set(label.split()) for name, label in zip(folds["id"], folds["label"])} == {
        name: set(cell.split()) for name, cell in lists.items()
    }
    g, (_, targets, table, probs) = opened(labelled), results(labelled)
    oof = g.oof()
    assert oof["label"].tolist() == [" ".join(np.array(g.classes)[row]) for row in targets]
    chosen = [[int(number) for number in str(text).split()] for text in table["label"]]
    assert oof["class"].tolist() == [" ".join(g.classes[number] for number in row) for row in chosen]
    assert np.array_equal(oof[list(g.classes)].to_numpy(), probs)
    parts = [ViewPredictions.load(labelled.views("slim", fold) / "test.npz") for fold in range(2)]
    files = [labelled.folder / "source" / "images" / f"{name}.png" for name in parts[0].ids[:6]]
    policy = Chain.load(labelled.blend / "chain.json").policies["slim"]
    expected = mix_views(mean_over_folds(parts), policy, slice(6))
    np.testing.assert_allclose(g.estimator("slim").predict_proba(files), expected, atol=1e-4)  # of each label by itself
    slim = g.oof("slim")
    assert [len(cell.split()) for cell in slim["class"]] == (slim[list(g.classes)] >= 0.5).sum(axis=1).tolist()


def test_the_other_stages_compare_label_sets_or_refuse_them(labelled: Workspace, tmp_path: Path) -> None:
    workspace = labelled.copy_to(tmp_path)
    (a,) = (file.stem for file in workspace.submissions.glob("*.csv"))
    blend, b = workspace.work / "blends" / a, "0" * 12  # another blend: the first row has other labels
    shutil.copytree(blend, blend.with_name(b))
    table = pd.read_csv(blend / "honest_oof.csv", keep_default_na=False, dtype=str)
    table.loc[0, "label"] = "0 1" if table.loc[0, "label"] != "0 1" else "2"
    table.to_csv(blend.with_name(b) / "honest_oof.csv", index=False)
    assert "1 row changed: 0 corrected, 1 corrupted" in workspace.do("compare_blends", "--a", a, "--b", b)
    (before,) = pd.read_csv(workspace.work / "compare_blends.csv")["before"]
    assert set(before.split()) <= set(COLOURS)
    table = workspace.do("list_blends", sets="honest.blocks=2")
    assert "\n  elsewhere " in table and "\n  stacking " in table
    assert "may also decide by thresholds, so its score may differ" in table  # the other rules are of single labels
    assert "honest multilabel_log_loss" in workspace.do("blend", sets="competition.metric=log_loss")
    for stage in ("label_issues", "export", "convert"):
        assert "the target of small is multi" in workspace.refused(stage)


def test_grades_are_classes_with_thresholds_and_a_kappa_equal_to_scikit_learns(tmp_path: Path) -> None:
    workspace = workspace_of(tmp_path, graded)
    text = workspace.params.read_text().replace("name: small,", "name: small, target: ordinal,")
    workspace.params.write_text(f"{text}decision: {{rules: [thresholds]}}\n")
    workspace.do_in_one_process(*STAGES)
    scores, labels, table, _ = results(workspace)
    expected = cohen_kappa_score(labels, table["label"], weights="quadratic")
    assert scores["metric"] == "quadratic_kappa" and scores["honest"] == pytest.approx(expected, abs=1e-12)
    assert scores["honest"] > 0.6 and scores["standard_error"] > 0
    assert len(json.loads((workspace.blend / "chain.json").read_text())["decision"]["thresholds"]) == 3
    assert set(submitted(workspace)) <= {"0", "1", "2", "3"}


def test_numbers_are_averaged_and_their_error_equals_scikit_learns(tmp_path: Path) -> None:
    workspace = workspace_of(tmp_path, measured)
    output = workspace.do_in_one_process(*STAGES)
    scores, targets, _, values = results(workspace)
    expected = root_mean_squared_error(targets, values[:, 0].astype(np.float64))
    assert scores["metric"] == "rmse" and scores["honest"] == pytest.approx(expected, abs=1e-12)
    assert scores["honest"] < 0.6 * targets.std() and scores["standard_error"] > 0
    assert submitted(workspace).astype(float).between(900, 1200).all()
    page = (workspace.work / "report.html").read_text().partition("</style>")[2]
    assert "trivial: the mean of all rows" in page and "predictions against the truth of 120 rows" in page
    assert not re.search("argmax|corrupted|corrected|rows fixed", page + output)
    g, names = opened(workspace), submitted(workspace).index[:6]
    predicted = g.predict([workspace.folder / "source" / "images" / f"{name}.png" for name in names])
    assert list(predicted.columns) == ["target"]  # values, no classes
    assert predicted["target"].tolist() == pytest.approx(
        submitted(workspace).loc[names].astype(float).tolist(), rel=1e-4
    )
    files = [workspace.folder / "source" / "images" / f"{name}.png" for name in names]  # slim is all of the blend
    assert g.estimator("slim").predict(files) == pytest.approx(predicted["target"].to_numpy(), rel=1e-6)
    assert g.oof()["label"].tolist() == targets.tolist() and list(g.oof().columns) == ["fold", "label", "target"]
    assert "honest mae" in workspace.do("blend", sets="competition.metric=mae")  # of the same target
    assert "blend: current" in workspace.do("blend", sets="competition.target=regression")  # stated, no longer detected
    refused = workspace.refused("blend", sets="competition.metric=accuracy")
    assert "accuracy was found, the target is regression" in refused

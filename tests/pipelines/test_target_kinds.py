"""Multi-label, ordinal and regression competitions: from a folder of PNGs and a CSV to a submission and an honest score."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import save_images
from sklearn.metrics import cohen_kappa_score, f1_score, root_mean_squared_error
from stages import ROOT, Workspace, new_workspace

import goldfold
from competition.ensemble.chain import Chain
from competition.ensemble.mixing import mean_over_folds
from competition.ensemble.stored_predictions import ViewPredictions, load_scores
from competition.ensemble.tta_policy import mix_views
from competition.prepare.adapter_types import Competition

STAGES = ("download", "prepare", "train", "predict", "blend", "report")
COLOURS = np.array(["red", "green", "blue"])
TRAIN, TEST, SIZE = 120, 30, 16
PARAMS = """
extends: {root}/tests/small.yaml
competition: {{adapter: folder, source: {source}}}
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


def drawn(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """What is added to the brightness of a noise image, of each colour, and its label."""
    if kind == "colours":
        chosen = rng.random(3) < [0.6, 0.4, 0.3]
        chosen[0] |= not chosen.any()
        return 120 * chosen, " ".join(COLOURS[chosen])
    if kind == "grades":
        grade = int(rng.integers(0, 4))
        return np.full(3, 40 * grade), str(grade)
    value = round(float(rng.uniform(1000, 1100)), 2)
    return np.full(3, int(1.5 * (value - 1000))), str(value)


def workspace_of(folder: Path, kind: str, members: str = "") -> Workspace:
    """A workspace with drawn images, train.csv, sample_submission.csv and the private solution."""
    rng, source, ids = np.random.default_rng(0), folder / "source", [f"i{n:03}" for n in range(TRAIN + TEST)]
    added, labels = zip(*(drawn(kind, rng) for _ in ids))
    noise = rng.integers(0, 80, (len(ids), SIZE, SIZE, 3))
    images = (noise + np.array(added)[:, None, None]).clip(0, 255).astype(np.uint8)
    save_images(source / "images", [f"{name}.png" for name in ids], images)
    (source / "private").mkdir()
    table = pd.DataFrame({"image": ids, "target": labels})
    table[:TRAIN].to_csv(source / "train.csv", index=False)
    table[TRAIN:].assign(target=labels[0]).to_csv(source / "sample_submission.csv", index=False)
    solution = table[TRAIN:].set_axis(["id", "label"], axis=1).assign(usage="Private")
    solution.to_csv(source / "private" / "solution.csv", index=False)
    return new_workspace(folder, PARAMS.format(root=ROOT, source=source, members=members))


def results(workspace: Workspace) -> tuple[dict, np.ndarray, pd.DataFrame, np.ndarray]:
    """scores.json, targets and honest_oof.csv of the out-of-fold rows, and their probabilities or values."""
    competition = Competition.load(workspace.work / "data" / "competition.json")
    index = pd.read_csv(workspace.work / "data" / "index.csv", dtype={"id": str}).set_index("id")
    ids, probs = load_scores(workspace.blend / "honest_oof.npz")
    table = pd.read_csv(workspace.blend / "honest_oof.csv", keep_default_na=False).set_index("id").loc[ids]
    return workspace.scores, competition.targets.of(index["label"].loc[ids].to_numpy()), table, probs


def submitted(workspace: Workspace) -> pd.Series:
    newest = max(workspace.submissions.glob("*.csv"), key=lambda file: file.stat().st_mtime)
    return pd.read_csv(newest, dtype=str, keep_default_na=False).set_index("image")["target"]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A multi-label competition with a student of `slim` and a member trained elsewhere."""
    folder = tmp_path_factory.mktemp("labels")
    members = (
        "  student: {architecture: cnn, image_size: 16, alpha: 0.25, weights: none, teacher: [slim], train: {seed: 8}}\n"
        f"  elsewhere: {{predictions: {{oof: {folder}/oof.csv, test: {folder}/test.csv}}}}"
    )
    workspace = workspace_of(folder, "colours", members)
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
    assert float(labelled.here("grade", "report", "submissions").split("private ")[1].split()[0]) > 0.85


def test_folds_and_python_show_the_label_sets(labelled: Workspace) -> None:
    labelled.here("folds")
    given = pd.read_csv(labelled.folder / "source" / "train.csv", dtype=str, index_col="image")["target"]
    shown = pd.read_csv(labelled.work / "folds.csv", dtype=str, index_col="id")["label"]
    assert shown.str.split().map(set).to_dict() == given.str.split().map(set).to_dict()
    g = goldfold.open(labelled.params, work=labelled.folder / "work")
    oof, (_, targets, table, probs) = g.oof(), results(labelled)
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
    assert "1 row changed: 0 corrected, 1 corrupted" in workspace.here("compare_blends", a=a, b=b)
    (before,) = pd.read_csv(workspace.work / "compare_blends.csv")["before"]
    assert set(before.split()) <= set(COLOURS)
    assert "\n  elsewhere " in workspace.here("list_blends", sets="honest.blocks=2")
    assert "honest multilabel_log_loss" in workspace.here("blend", sets="competition.metric=log_loss")
    for stage in ("label_issues", "export", "convert"):
        assert re.search("the target (of small )?is multi", workspace.refused_here(stage))


def test_grades_are_classes_with_thresholds_and_a_kappa_equal_to_scikit_learns(tmp_path: Path) -> None:
    workspace = workspace_of(tmp_path, "grades")
    text = workspace.params.read_text().replace("adapter: folder,", "adapter: folder, target: ordinal,")
    workspace.params.write_text(f"{text}decision: {{rules: [thresholds]}}\n")
    workspace.do_in_one_process(*STAGES)
    scores, labels, table, _ = results(workspace)
    expected = cohen_kappa_score(labels, table["label"], weights="quadratic")
    assert scores["metric"] == "quadratic_kappa" and scores["honest"] == pytest.approx(expected, abs=1e-12)
    assert scores["honest"] > 0.6 and scores["standard_error"] > 0
    assert len(json.loads((workspace.blend / "chain.json").read_text())["decision"]["thresholds"]) == 3
    assert set(submitted(workspace)) <= {"0", "1", "2", "3"}


def test_numbers_are_averaged_and_their_error_equals_scikit_learns(tmp_path: Path) -> None:
    workspace = workspace_of(tmp_path, "values")
    output = workspace.do_in_one_process(*STAGES)
    scores, targets, _, values = results(workspace)
    expected = root_mean_squared_error(targets, values[:, 0].astype(np.float64))
    assert scores["metric"] == "rmse" and scores["honest"] == pytest.approx(expected, abs=1e-12)
    assert scores["honest"] < 0.6 * targets.std() and scores["standard_error"] > 0
    assert submitted(workspace).astype(float).between(900, 1200).all()
    page = workspace.page.partition("</style>")[2]
    assert not re.search("argmax|corrupted|corrected|rows fixed", page + output)
    g = goldfold.open(workspace.params, work=workspace.folder / "work")
    written = submitted(workspace)[:6].astype(float)
    files = [workspace.folder / "source" / "images" / f"{name}.png" for name in written.index]
    predicted = g.predict(files)
    assert list(predicted.columns) == ["target"]  # values, no classes
    assert predicted["target"].tolist() == pytest.approx(written.tolist(), rel=1e-4)
    alone = g.estimator("slim").predict(files)  # slim is all of the blend
    assert alone == pytest.approx(predicted["target"].to_numpy(), rel=1e-6)
    assert g.oof()["label"].tolist() == targets.tolist() and list(g.oof().columns) == ["fold", "label", "target"]
    assert "honest mae" in workspace.here("blend", sets="competition.metric=mae")  # of the same target
    stated = "competition.target=regression"  # no longer detected
    assert "blend: current" in workspace.here("blend", sets=stated)
    refused = workspace.refused_here("blend", "competition.metric=accuracy")
    assert "accuracy was found, the target is regression" in refused

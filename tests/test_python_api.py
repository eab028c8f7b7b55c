"""`import goldfold` as a notebook uses it: in a process of its own, on the finished workspace."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import ROOT
from preloaded import run_preloaded
from scipy.special import softmax
from sklearn.base import clone, is_classifier
from sklearn.metrics import f1_score, get_scorer
from sklearn.model_selection import cross_val_score
from stages import Workspace

import goldfold
from competition.config.errors import UserError
from competition.ensemble.stored_predictions import ViewPredictions, load_scores
from competition.ensemble.view_transforms import get_views
from competition.files.image_codec import decode, encode
from competition.prepare.prepared import load_prepared
from competition.prepare.record_files import read_shard
from pipelines.main_job import blend
from pipelines.terminal.job import Job


def opened(workspace: Workspace, overrides: str = "") -> goldfold.Project:
    return goldfold.open(workspace.params, overrides, work=workspace.folder / "work")


def test_folds_and_out_of_fold_predictions_are_those_of_the_files(finished: Workspace) -> None:
    g, prepared = opened(finished), load_prepared(finished.work / "data")
    train = prepared.part("train")
    assert g.classes == prepared.competition.classes and len(g.test) == 150
    assert g.folds["id"].tolist() == train["id"].tolist() and g.folds["fold"].tolist() == train["fold"].tolist()
    assert g.folds["label"].tolist() == [g.classes[label] for label in train["label"]]
    oof = g.oof("slim")
    assert oof.index.tolist() == train["id"].tolist() and list(oof.columns) == ["fold", "label", "class", *g.classes]
    stored = ViewPredictions.load(finished.views("slim", 1) / "oof.npz")
    assert np.array_equal(oof.loc[stored.ids, list(g.classes)].to_numpy(), stored.view("identity"))
    assert (oof["fold"].loc[stored.ids] == 1).all()
    assert np.array_equal(g.oof("slim", "shift_up").loc[stored.ids, list(g.classes)], stored.view("shift_up"))
    competition = replace(prepared.competition, classes=("label", *g.classes[1:]))
    g._prepared = replace(prepared, competition=competition)
    # Classes keep their names.
    assert list(g.oof("slim").columns) == ["fold", "row_label", "class", *competition.classes]


def test_the_scores_of_the_blend_are_honest_and_so_are_its_out_of_fold_decisions(finished: Workspace) -> None:
    g, scores = opened(finished), finished.scores
    table = g.scores()
    assert table.index.tolist() == ["slim", "wide", "trivial baseline", "equal weights", "blend"]
    assert table.loc["blend", "score"] == scores["honest"]
    assert table.loc["slim", "score"] == scores["members"]["slim"]["score"]
    assert (table["standard_error"] > 0).all() and table.attrs["metric"] == "macro_f1"
    answers = pd.read_csv(finished.blend / "honest_oof.csv", dtype={"id": str}, keep_default_na=False)
    rows = g.oof()[lambda table: ~table["fold"].isin(scores["tuned_folds"])]
    assert f1_score(rows["label"], rows["class"], average="macro") == pytest.approx(table.loc["blend", "score"])
    assert table.attrs["tuned_folds"] == scores["tuned_folds"] and table.attrs["honest_rows"] == len(rows)
    assert g.oof()["class"].tolist() == [g.classes[label] for label in answers["label"]]


STRONG = "policy.method=mean blend.methods=[equal] decision.rules=[prior]"


@pytest.fixture(scope="module")
def strong(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A blend with every step of the chain at work: views, members, rule."""
    workspace = finished.copy_to(tmp_path_factory.mktemp("api"))
    workspace.do("blend", sets=STRONG)
    return workspace


def test_scores_are_those_of_the_blend_of_the_stated_overrides_or_a_warning_says_what_differs(strong, recwarn):
    of_overrides = {}
    for overrides in ("", STRONG, ""):  # whichever was made last
        of_overrides[overrides] = opened(strong, overrides).scores().loc["blend", "score"]
    assert of_overrides[STRONG] == strong.scores["honest"] != of_overrides[""] and not recwarn.list
    # The command that the warning names is of the same parameters.
    command = r"`make blend PARAMS=\S+ SET=\"policy.method=mean\"` makes it again"
    with pytest.warns(UserWarning, match=rf"made with other parameters \(.*policy.method: greedy -> mean.*{command}"):
        assert opened(strong, "policy.method=mean").scores().loc["blend", "score"] == of_overrides[""]
    with pytest.warns(UserWarning, match="other members, fold models or predictions than .* has now: slim"):
        opened(strong, "members.slim.train.epochs=21").oof()


def predict_again(folder: str) -> None:
    """New images get the predictions that they got as test images, from tools of scikit-learn too, and a loaded model those of
    its fold. In a process of its own, which starts a device.
    """
    workspace = Workspace(Path(folder))
    g, prepared = opened(workspace, STRONG), load_prepared(workspace.work / "data")
    train, test = (
        {record.id: record.image for shard in prepared.records(part) for record in read_shard(shard)}
        for part in ("train", "test")
    )
    ids = np.array(sorted(test)[:90])
    table = g.predict([test[name] for name in ids])
    _, probs = load_scores(workspace.blend / "test.npz", ids)
    np.testing.assert_allclose(table[list(g.classes)], probs, rtol=0, atol=2e-3)  # float16, and other batches
    newest = max(workspace.submissions.glob("*.csv"), key=lambda file: file.stat().st_mtime_ns)
    written = pd.read_csv(newest, dtype=str).set_index("id")["label"].loc[ids].astype(int)
    assert table["class"].tolist() == [g.classes[number] for number in written]

    model, oof = g.load_model("slim", fold=2), g.oof("slim").query("fold == 2")[:50]
    assert (model.input_shape, model.output_shape) == ((None, 16, 16, 3), (None, 10))
    pixels = np.stack([decode(train[name], 16, "squash") for name in oof.index])  # of 0 to 255
    probs = softmax(np.asarray(model(pixels.astype(np.float32), training=False)), axis=1)
    np.testing.assert_allclose(oof[list(g.classes)], probs, rtol=0, atol=2e-3)

    X = np.stack([decode(test[name], 16, "squash") for name in ids[:60]])
    blend, slim, table = g.estimator("blend"), g.estimator("slim"), g.predict(X)
    y, classes = np.roll(blend.predict(X), 3), list(blend.classes_)  # labels that are partly wrong
    assert is_classifier(blend) and clone(blend) is blend and classes == sorted(classes)
    assert blend.predict(X).tolist() == table["class"].tolist()
    assert slim.predict(X).tolist() == np.array(classes)[slim.predict_proba(X).argmax(1)].tolist()
    np.testing.assert_array_equal(blend.predict_proba(X), table[classes])
    assert 0 < (score := blend.score(X, y)) < 1
    assert score == pytest.approx(np.mean(table["class"].to_numpy() == y))
    of_labels = table[classes].to_numpy(float)[np.arange(60), [classes.index(name) for name in y]]
    log_likelihood = np.log(np.clip(of_labels, np.finfo("f4").eps, 1)).mean()  # scikit-learn clips them, too
    assert get_scorer("neg_log_loss")(blend, X, y) == pytest.approx(log_likelihood, rel=0.02)  # columns as in classes_
    with pytest.raises(ValueError, match=r"this estimator is trained.* scores\(\)"):
        cross_val_score(blend, X, y, cv=2, error_score="raise")


def test_new_images_get_their_stored_predictions_and_a_loaded_model_gives_those_of_its_fold(strong) -> None:
    chain = json.loads((strong.blend / "chain.json").read_text())
    assert [len(views) for views in chain["policies"].values()] == [2, 2]
    tests = f"import sys; sys.path.append({str(ROOT / 'tests')!r}); import test_python_api as tests"
    code = f"{tests}; tests.predict_again({str(strong.folder)!r})"
    exit_code, _, err = run_preloaded("", [], ROOT, os.environ, code)
    assert exit_code == 0, err


def test_a_wrong_name_and_missing_results_are_refused_in_one_sentence(finished, tmp_path, monkeypatch) -> None:
    g = opened(finished)
    for ask in (lambda: g.oof("slin"), lambda: g.load_model("slin", 0), lambda: g.estimator("slin")):
        with pytest.raises(UserError, match="no member 'slin'; did you mean 'slim'"):
            ask()
    with pytest.raises(UserError, match="slim has no fold 7; its folds are 0 to 2"):
        g.load_model("slim", fold=7)
    monkeypatch.chdir(tmp_path)  # names of files are looked up in the project's folder, too
    with pytest.raises(UserError, match="needs the results of `make download`"):
        goldfold.open("recipes/own-images.yaml", work=tmp_path)
    elsewhere = opened(finished, "members.torch='{predictions: {oof: a/oof.npz, test: /b/test.npz}}'")
    files = elsewhere.params.external["torch"]
    assert (files.oof, files.test) == (str(ROOT / "a" / "oof.npz"), ("/b/test.npz",))
    with pytest.raises(UserError, match=r"^MEMBER=torch: trained elsewhere, so no .*; members with models are slim"):
        elsewhere.estimator("torch")
    with pytest.raises(UserError, match="the blend was made with other models or parameters of slim"):
        opened(finished, "train.learning_rate=0.001").predict([np.zeros((8, 8, 3), np.uint8)])


def test_projects_of_one_process_keep_their_own_plugins(finished: Workspace, tmp_path: Path) -> None:
    workspace, jobs, scores = finished.copy_to(tmp_path / "copy"), dict[float, Job](), list[float]()
    for factor in (1.0, 0.5):
        (file := tmp_path / f"{factor}.py").write_text(
            f"METRICS = {{'own': lambda labels, probs: {factor} * (probs.argmax(1) == labels).mean()}}\n"
            f"VIEWS = {{'own': lambda images: {factor} * images}}\n"
        )
        jobs[factor] = workspace.job(f"plugins={file} competition.metric=own blend.methods=[equal]")
    workspace.job()  # a third one, without plugins
    for factor, job in jobs.items():
        blend.run(job)
        scores.append(workspace.scores["honest"])
        assert get_views(["own"], job.params.plugins)[0](4.0) == 4 * factor
    assert scores[1] == scores[0] / 2


def test_the_code_in_the_documentation_runs(finished: Workspace, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "python_api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = "\n".join(blocks).replace("photos.yaml", str(finished.params)).replace('"small"', '"slim"')
    code = code.replace('.yaml")', f'.yaml", work={str(finished.folder / "work")!r})')
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(encode(np.full((20, 20, 3), 99, np.uint8), "png"))
    exit_code, _, err = run_preloaded("", [], tmp_path, os.environ, code)
    assert len(blocks) >= 4 and exit_code == 0, err

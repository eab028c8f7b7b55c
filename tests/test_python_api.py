"""`import goldfold` as a notebook uses it: in a process of its own, on the finished workspace."""

import json
import os
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import ROOT
from preloaded import run_preloaded
from sklearn.metrics import f1_score
from stages import Workspace

import goldfold
from competition.config.errors import UserError
from competition.ensemble.predictions import ViewPredictions, load_scores
from competition.prepare.decoding import encode_png
from competition.prepare.prepared import load_prepared


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
    assert list(g.oof("slim").columns) == [
        "fold",
        "row_label",
        "class",
        *competition.classes,
    ]  # classes keep their names


def test_the_scores_of_the_blend_are_honest_and_so_are_its_out_of_fold_decisions(finished: Workspace) -> None:
    g, scores = opened(finished), json.loads((finished.blend / "scores.json").read_text())
    table = g.scores()
    assert table.index.tolist() == ["slim", "wide", "trivial baseline", "equal weights", "blend"]
    assert (
        table.loc["blend", "score"] == scores["honest"]
        and table.loc["slim", "score"] == scores["members"]["slim"]["score"]
    )
    assert (table["standard_error"] > 0).all() and table.attrs["metric"] == "macro_f1"
    answers = pd.read_csv(finished.blend / "honest_oof.csv", dtype={"id": str}, keep_default_na=False)
    rows = g.oof()[lambda table: ~table["fold"].isin(scores["tuned_folds"])]
    assert f1_score(rows["label"], rows["class"], average="macro") == pytest.approx(table.loc["blend", "score"])
    assert table.attrs["tuned_folds"] == scores["tuned_folds"] and table.attrs["honest_rows"] == len(rows)
    assert g.oof()["class"].tolist() == [g.classes[label] for label in answers["label"]]


STRONG = "policy.method=mean blend.methods=[equal] decision.rules=[prior]"


@pytest.fixture(scope="module")
def predicted(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, dict[str, object]]:
    """A blend with every step of the chain at work (views, members, rule), and what the interface gave."""
    workspace = finished.copy_to(tmp_path_factory.mktemp("api"))
    workspace.do("blend", sets=STRONG)
    code = f"""
        import goldfold, json
        g = goldfold.open({str(workspace.params)!r}, {STRONG!r}, work={str(workspace.folder / "work")!r})
    """
    code += """
        import numpy as np
        from sklearn.base import clone, is_classifier
        from sklearn.metrics import get_scorer
        from sklearn.model_selection import cross_val_score
        from competition.prepare import record_shards
        from competition.prepare.decoding import decode
        from competition.prepare.prepared import load_prepared
        prepared = load_prepared(g._workspace.folder / "data")
        test = {name: data for name, _, data in record_shards.read(prepared.records("test"))}
        ids = sorted(test)[:90]
        table = g.predict([test[name] for name in ids])

        model, oof = g.load_model("slim", fold=2), g.oof("slim").query("fold == 2")[:50]
        train = {name: data for name, _, data in record_shards.read(prepared.records("train"))}
        pixels = np.stack([decode(train[name], 16, "squash") for name in oof.index])
        logits = np.asarray(model(pixels.astype("float32"), training=False))
        probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        result = {"ids": ids, "class": table["class"].tolist(), "probs": table[list(g.classes)].to_numpy().tolist(),
                  "shapes": [list(model.input_shape), list(model.output_shape)],
                  "difference": float(np.abs(probs - oof[list(g.classes)].to_numpy()).max())}

        X = np.stack([decode(test[name], 16, "squash") for name in ids[:60]])
        blend, slim, table = g.estimator("blend"), g.estimator("slim"), g.predict(X)
        y, classes = np.roll(blend.predict(X), 3), list(blend.classes_)  # labels that are partly wrong
        of_labels = table[classes].to_numpy(float)[np.arange(60), [classes.index(n) for n in y]]
        refused = ""
        try:
            cross_val_score(blend, X, y, cv=2, error_score="raise")
        except ValueError as error:
            refused = str(error)
        result |= {
            "classes": classes, "is_classifier": is_classifier(blend), "is_itself": clone(blend) is blend, "refused": refused,
            "predict": blend.predict(X).tolist() == table["class"].tolist(),
            "proba": float(np.abs(blend.predict_proba(X) - table[classes].to_numpy()).max()),
            "score": [blend.score(X, y), float(np.mean(table["class"].to_numpy() == y))],
            "scorer": get_scorer("neg_log_loss")(blend, X, y),
            "log": float(np.mean(np.log(np.clip(of_labels, np.finfo("f4").eps, 1)))),  # scikit-learn clips them, too
            "member": slim.predict(X).tolist() == np.array(classes)[slim.predict_proba(X).argmax(1)].tolist(),
        }
        print(json.dumps(result))
    """
    exit_code, out, err = run_preloaded("", [], ROOT, os.environ, textwrap.dedent(code))
    assert exit_code == 0, err
    return workspace, json.loads(out.splitlines()[-1])


def test_scores_are_those_of_the_blend_of_the_stated_overrides_or_a_warning_says_what_differs(
    predicted, recwarn
) -> None:
    workspace, of_overrides = predicted[0], {}
    for overrides in ("", STRONG, ""):  # whichever was made last
        of_overrides[overrides] = opened(workspace, overrides).scores().loc["blend", "score"]
    strong = json.loads((workspace.blend / "scores.json").read_text())["honest"]
    assert of_overrides[STRONG] == strong != of_overrides[""] and not recwarn.list
    with pytest.warns(UserWarning, match=r"made with other parameters \(.*policy.method: greedy -> mean"):
        assert opened(workspace, "policy.method=mean").scores().loc["blend", "score"] == of_overrides[""]
    with pytest.warns(UserWarning, match="other fold models or predictions of slim"):
        opened(workspace, "members.slim.train.epochs=21").oof()


def test_new_images_get_the_predictions_they_got_as_test_images_and_a_loaded_model_those_of_its_fold(predicted) -> None:
    workspace, result = predicted
    chain = json.loads((workspace.blend / "chain.json").read_text())
    assert [len(views) for views in chain["policies"].values()] == [2, 2]
    ids = np.array(result["ids"])
    _, probs = load_scores(workspace.blend / "test.npz", ids)
    assert np.abs(probs - np.array(result["probs"])).max() < 2e-3  # float16, and other batches
    newest = max(workspace.submissions.glob("*.csv"), key=lambda file: file.stat().st_mtime_ns)
    written = pd.read_csv(newest, dtype=str).set_index("id")["label"].loc[ids].astype(int)
    numbers = {name: number for number, name in enumerate(load_prepared(workspace.work / "data").competition.classes)}
    assert [numbers[name] for name in result["class"]] == written.tolist()

    # A loaded model: from decoded pixels of 0 to 255 to a softmax of the logits.
    assert result["shapes"] == [[None, 16, 16, 3], [None, 10]]
    assert result["difference"] < 2e-3  # float16


def test_the_estimator_gives_the_predictions_of_the_blend_to_tools_of_scikit_learn(predicted) -> None:
    _, estimated = predicted
    assert estimated["predict"] and estimated["proba"] == 0
    assert estimated["is_classifier"] and estimated["is_itself"] and estimated["member"]
    score, share = estimated["score"]
    assert score == pytest.approx(share) and 0 < score < 1
    assert "this estimator is trained" in estimated["refused"] and "scores()" in estimated["refused"]
    assert estimated["classes"] == sorted(estimated["classes"])
    assert estimated["scorer"] == pytest.approx(estimated["log"], rel=0.02)  # columns in the order of classes_


def test_a_wrong_name_and_missing_results_are_refused_in_one_sentence(finished: Workspace, tmp_path: Path) -> None:
    g = opened(finished)
    for ask in (lambda: g.oof("slin"), lambda: g.load_model("slin", 0), lambda: g.estimator("slin")):
        with pytest.raises(UserError, match="no member 'slin'; did you mean 'slim'"):
            ask()
    with pytest.raises(UserError, match="slim has no fold 7; its folds are 0 to 2"):
        g.load_model("slim", fold=7)
    with pytest.raises(UserError, match="needs the results of `make download`"):
        goldfold.open(finished.params, work=tmp_path)
    with pytest.raises(UserError, match="the blend was made with other models or parameters of slim"):
        opened(finished, "train.learning_rate=0.001").predict([np.zeros((8, 8, 3), np.uint8)])


def test_the_code_in_the_documentation_runs(finished: Workspace, tmp_path: Path) -> None:
    """Every Python block of docs/python_api.md, in order, as one program."""
    text = (ROOT / "docs" / "python_api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = "\n".join(blocks).replace("photos.yaml", str(finished.params)).replace('"small"', '"slim"')
    code = code.replace('.yaml")', f'.yaml", work={str(finished.folder / "work")!r})')
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(encode_png(np.full((20, 20, 3), 99, np.uint8)))
    exit_code, _, err = run_preloaded("", [], tmp_path, os.environ, code)
    assert len(blocks) >= 4 and exit_code == 0, err

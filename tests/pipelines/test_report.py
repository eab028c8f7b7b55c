"""What is shown of blends on the finished workspace: the report, comparisons and lists, and what stands beside a score."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from stages import Workspace

import goldfold
from competition.config.digests import digest_of
from competition.ensemble.chain import Chain
from competition.ensemble.external_check import OTHER_IDS
from competition.ensemble.stored_predictions import ViewPredictions
from competition.files.manifest import write_json
from competition.prepare.prepared import load_prepared
from competition.workspace.scores import seed_study_path

SECTION = re.compile(r'<section id="(\w+)">')


def section_of(page: str, key: str) -> str:
    (section,) = re.findall(f'<section id="{key}">.*?</section>', page, re.DOTALL)
    return section


def test_the_page_has_the_figures_of_the_terminal_the_problems_of_the_data_and_pictures_without_a_cache(workspace):
    data, prepared = workspace.work / "data", load_prepared(workspace.work / "data")
    (test, *_), (train, *_) = (prepared.part(part).to_dict("records") for part in ("test", "train"))
    leak = {"kind": "test in train", "id": test["id"], "match": train["id"], "label": train["label"], "exact": True}
    pd.DataFrame([leak]).to_csv(data / "leaks.csv", index=False)
    value = prepared.competition.label_values[3]
    pd.DataFrame([{"group": 0, "id": "twice", "label": value}]).to_csv(data / "conflicts.csv", index=False)
    unreadable = {"id": "<b>rose", "part": "train", "shard": "0.tfrec", "problem": "cut"}
    pd.DataFrame([unreadable]).to_csv(data / "unreadable.csv", index=False)
    shutil.rmtree(workspace.work / "cache")  # pictures are decoded from the records
    output, page = workspace.here("blend", "report", verbose=True), workspace.page
    (honest,) = re.findall(r"honest \w+ (\d\.\d{4} ± \d\.\d{4})", output)
    (chosen,) = re.findall(r"the blend \(.*\) scores (\d\.\d{4})", output)
    (band,) = re.findall(r"test rows: (\d\.\d{4} to \d\.\d{4})", output)
    shown = [f"<b>{honest}</b>", f"<b>{band}</b>", f"blend, rows that chose it {chosen} (optimistic)"]
    shown.append(f'<p class="verdict">macro_f1 {honest} on rows')
    members = re.findall(r"^  (slim|wide) +(\d\.\d{4}) +([+-]\d\.\d{4})  ", output, re.MULTILINE)
    assert {name for name, _, _ in members} == {"slim", "wide"}
    for name, alone, worth in members:
        shown.append(f'<th scope="row" class="word">{name}</th><td>{alone}</td><td>{worth}</td>')
    shown += ["LEAK: 1 of 150 test images are also labelled images", "1 image cannot be decoded", "&lt;b&gt;rose"]
    assert [text for text in shown if text not in page] == []
    wrong, errors = int(re.findall(r"Misclassified rows: (\d+) of 450", page)[0]), section_of(page, "errors")
    assert 0 < errors.count("<figure>") == min(wrong, 32) == errors.count('<img src="data:image/png;base64,')
    assert str(workspace.folder) not in page.replace(str(workspace.params), "")
    name = prepared.competition.classes[3]
    assert re.search(rf"twice</\w+><td[^>]*>{name}<", page)  # of conflicts.csv


def test_a_blend_of_other_parameters_or_data_has_a_warning_and_after_an_error_the_previous_page_is_kept(workspace):
    shutil.rmtree(workspace.views("wide", 1))
    workspace.here("report", sets="blend.rounds=9")
    page, label = workspace.page, "(of the current parameters, not of the blend)</h2>"
    assert "The blend was made with other parameters (blend.rounds: 3 -&gt; 9)" in page
    assert [key for key in SECTION.findall(page) if label in section_of(page, key)] == ["members", "tuning", "costs"]
    described = workspace.work / "data" / "competition.json"
    text = described.read_text()
    described.write_text(text.replace('"nine"', '"ten"'))
    assert "The blend is of other data than those that are here now" in workspace.here("report")
    before, keys = workspace.page, SECTION.findall(workspace.page)
    assert "blend" in keys and not {"classes", "map", "errors"} & set(keys)
    described.write_text(text)
    (workspace.blend / "honest_oof.npz").write_bytes(b"cut")
    assert "not a readable .npz" in workspace.refused_here("report")
    assert workspace.page == before and not list(workspace.work.glob(".report*"))
    # Before training the page describes the data.
    for folder in ("members", "blend", "blends"):
        shutil.rmtree(workspace.work / folder)
    workspace.here("report")
    keys = SECTION.findall(workspace.page)
    assert "data" in keys and not {"overview", "blend", "members", "errors"} & set(keys)


def test_a_seed_study_of_other_parameters_is_not_shown_as_that_of_the_member(workspace: Workspace) -> None:
    results = workspace.job().workspace
    for name in ("wide", "slim"):  # both of the parameters of wide
        study = {"spread": 0.0123, "scores": [0.8, 0.82, 0.81]}
        write_json(seed_study_path(results, name, results.params.members["wide"]), study)
    workspace.here("report")
    assert workspace.page.count("wide 0.0123; not measured: slim") == 1
    assert "slim: its seed study is of other" in workspace.page


def test_scores_of_rows_that_chose_hyperparameters_are_marked_wherever_they_are_shown(workspace) -> None:
    own = "alpha: 0.25, weights: none"
    workspace.params.write_text(workspace.params.read_text().replace(own, f"{own}, tuned_folds: [0]"))
    output = workspace.here("train", "predict", "blend", "report", "runs")  # the fold models are copied
    page = workspace.page
    assert re.search(r">slim</th><td>0\.\d{4} †</td>", section_of(page, "members"))
    assert "those of fold 0 chose hyperparameters and are left out" in section_of(page, "overview")
    assert re.search(r"0\.\d{4} †", output) and "† rows that chose the run's hyperparameters" in output


def add_external_member(workspace: Workspace) -> None:
    """Add the external member torch: the predictions of `wide`, with its out-of-fold rows as CSV in reverse order."""
    g = goldfold.open(workspace.params, work=workspace.folder / "work")
    g.oof("wide")[list(g.classes)][::-1].rename_axis("id").to_csv(workspace.folder / "oof.csv")
    test = ViewPredictions.load(workspace.views("wide", 0) / "test.npz")
    np.savez(workspace.folder / "test.npz", ids=test.ids, probs=test.view("identity"), classes=g.classes)
    text = f"  torch:\n    predictions: {{oof: {workspace.folder}/oof.csv, test: {workspace.folder}/test.npz}}\n"
    workspace.params.write_text(workspace.params.read_text().replace("predict:", f"{text}predict:"))


def test_an_external_member_is_part_of_the_blend_with_its_doubt_and_is_not_trained(workspace: Workspace) -> None:
    add_external_member(workspace)
    output = workspace.here("train", "predict", "blend")
    assert "made again" not in output and "; folds of torch unknown; expected on 150 test rows: " in output
    assert set(Chain.load(workspace.blend / "chain.json").blend.weights) == {"slim", "wide", "torch"}
    again = workspace.here("blend", "report")  # a doubt stands beside the score whenever it is shown
    assert "blend: current" in again and "torch: folds unknown" in again
    assert "may be optimistic: folds of torch unknown" in workspace.page
    with pytest.warns(UserWarning, match="^torch: folds unknown, so nothing says that") as warned:
        table = goldfold.open(workspace.params, work=workspace.folder / "work").scores()
    file = f" PARAMS={workspace.params}"  # which a warning names, because its command is to be run elsewhere
    assert table.attrs["notes"] == [str(one.message).replace(file, "") for one in warned]
    digest = output.partition("set predictions.folds: ")[2].split()[0]
    text = workspace.params.read_text()
    workspace.params.write_text(text.replace("test.npz}", f"test.npz, folds: {digest}}}"))
    output = workspace.here("blend")
    assert "folds unknown" not in output and "other folds than ours" not in output
    error = workspace.refused_here("blend", f"members.torch.predictions.oof={workspace.folder}")
    assert f"members.torch.predictions.oof: {workspace.folder} is no file" in error
    error = workspace.refused_here("train", member="torch")
    assert "MEMBER=torch: it was trained elsewhere, so it can be neither trained nor exported here" in error
    # It is listed, and incomplete runs with their folds.
    shutil.rmtree(workspace.fold("wide", 1))
    output = workspace.here("runs")
    assert "trained elsewhere, without runs: torch" in output
    assert re.search(r"^wide@\w+ \* .* 2/3 incomplete ", output, re.MULTILINE)


def test_test_rows_have_the_views_of_the_chain(workspace: Workspace) -> None:
    assert "blend: current" in workspace.here("blend")
    assert workspace.scores["chain"] == digest_of(Chain.load(workspace.blend / "chain.json"))
    # Test rows must have the views of the scored chain.
    for fold in range(3):
        file = workspace.views("wide", fold) / "test.npz"
        test = ViewPredictions.load(file)
        ViewPredictions(test.ids, ("shift_down", "shift_up"), test.probs).save(file)
    words = "view 'identity' was not predicted; found shift_down, shift_up"
    assert words in workspace.refused_here("blend", force=True)


COUNTS = r"(\d+) rows? changed: (\d+) corrected, (\d+) corrupted, (\d+) wrong before and after"


def test_blends_are_compared_on_rows_that_chose_nothing_in_either(workspace: Workspace) -> None:
    (first,) = (file.stem for file in workspace.submissions.glob("*.csv"))
    output = workspace.here("blend", sets="policy.method=mean")
    (second,) = {file.stem for file in workspace.submissions.glob("*.csv")} - {first}
    words = "repeated choices: 2 different blends on these 450 rows"
    assert words in output and "repeated choices: 2 different blends" in workspace.here("submissions")
    assert "B= not given" in workspace.refused_here("compare_blends", a=first)
    honest_oof_file = workspace.work / "blends" / second / "honest_oof.csv"
    table = pd.read_csv(honest_oof_file, dtype={"id": str}, keep_default_na=False)
    table.assign(scored=(np.arange(len(table)) >= 150).astype(int)).to_csv(honest_oof_file, index=False)
    comparison = workspace.here("compare_blends", a=first, b=second)
    assert "on 300 out-of-fold rows" in comparison
    counts = [int(n) for n in re.search(COUNTS, comparison).groups()]
    assert counts[0] == sum(counts[1:]) > 0
    assert f"`make compare-blends A={first} B={second}` compares them" in output


def test_the_doubts_of_a_blend_do_not_stand_for_another_one_with_the_same_submission(workspace: Workspace) -> None:
    add_external_member(workspace)
    alone, table = "blend.methods=[best]", pd.read_csv(workspace.folder / "oof.csv", dtype={"id": str})
    table.iloc[:60, 1:] = 0.1  # worse than the others, so it has no weight
    table.to_csv(workspace.folder / "oof.csv", index=False)
    shutil.rmtree(workspace.work / "blends")  # its blend without torch may give the same submission
    workspace.here("blend", sets=alone)
    clean = json.loads((workspace.blend / "manifest.json").read_text())["result"]["file"].removesuffix(".csv")
    file = workspace.folder / "test.npz"
    stored = dict(np.load(file))
    np.savez(file, **{**stored, "ids": np.roll(stored["ids"], 7)})
    (shuffled,) = re.findall(rf"({clean}-\w{{6}}) \(", workspace.here("blend", sets=alone))
    workspace.here("blend", sets="blend.methods=[equal]")
    assert f"B={shuffled}`" in workspace.here("blend", sets=alone, force=True)
    lines = workspace.here("compare_blends", a=clean, b=shuffled).splitlines()
    assert [line.split(":")[0].strip() for line in lines if OTHER_IDS in line] == [shuffled]
    assert lines[1].endswith(f"; DOUBTED, because the score of {shuffled} is, see below")
    assert {folder.name for folder in (workspace.work / "blends").glob(f"{clean}*")} == {clean, shuffled}


def test_pictures_of_wrong_and_right_rows_are_explained(workspace: Workspace) -> None:
    workspace.do("grad_cam", "--member", "slim")
    result = json.loads((workspace.work / "grad_cam.json").read_text())["result"]
    assert result["method"] == "Grad-CAM" and 2 * result["wrong"] + result["right"] > 0
    with Image.open(workspace.work / "grad_cam.png") as sheet:
        assert len(set(sheet.convert("L").getdata())) > 10  # not a blank image
    workspace.here("report")
    section = section_of(workspace.page, "gradcam")
    assert "Grad-CAM by the fold models of slim@" in section and section.count("data:image/jpeg;base64,") == 1


def test_label_issues_are_listed_for_rows_that_the_prepared_data_still_contain(workspace: Workspace) -> None:
    file = workspace.work / "data" / "index.csv"
    index = pd.read_csv(file, dtype={"id": str}, keep_default_na=False)
    index.drop(index=index.index[index["part"] == "train"][:7]).to_csv(file, index=False)
    output = workspace.do("label_issues")
    assert "left out 7 of 450 rows, which the prepared data no longer have" in output
    assert re.search(r"\d+ doubtful labels among 443 rows", output)
    index.assign(id=[f"other{n}" for n in range(len(index))]).to_csv(file, index=False)
    words = "the blend is of other data: 0 of its 450 rows are in the prepared data"
    assert words in workspace.refused_here("label_issues")


def test_class_shares_of_the_test_rows_change_the_submission_and_no_score(workspace: Workspace) -> None:
    for file in workspace.work.glob("members/*/*/fold*/views/*/test.npz"):  # doubtful predictions, which shares decide
        test = ViewPredictions.load(file)
        doubtful = test.probs.astype(np.float32) ** 0.2
        ViewPredictions(test.ids, test.views, doubtful / doubtful.sum(-1, keepdims=True)).save(file)
    workspace.here("blend", force=True)
    plain, before = workspace.scores, (workspace.blend / "submission.csv").read_text()
    output = workspace.here("blend", sets="blend.class_shares=test")
    assert "adapted to the class shares of the test rows" in output
    assert workspace.scores["honest"] == plain["honest"] and "class_shares" not in plain
    after = (workspace.blend / "submission.csv").read_text()
    changed = sum(a != b for a, b in zip(before.splitlines(), after.splitlines(), strict=True))
    assert changed == int(re.search(r"labels changed: (\d+)", output)[1]) > 0


def test_scores_stand_beside_the_trivial_baseline_and_a_result_that_is_not_better_says_so(workspace: Workspace) -> None:
    beside = r"the trivial baseline.* scores (?:public )?(\d\.\d+)"
    assert "the trivial baseline's is 0." in workspace.here("train")  # a mean over folds, beside one
    verbs = ("list_blends", "runs", "submit", "submissions")
    shown = [re.search(beside, workspace.here(verb)) for verb in verbs]
    assert all(shown) and len({one[1] for one in shown}) == 1, shown  # of all training rows
    current, changed = workspace.here("list_blends"), workspace.here("list_blends", sets="honest.blocks=2")
    assert "list-blends: current" in current and "list-blends: made again (honest.blocks: " in changed
    assert re.search(beside, current) and "\n  blend method " in current
    assert re.search(beside, workspace.here("grade"))
    (file,) = workspace.submissions.glob("*.csv")
    head, *rows = file.read_text().splitlines()
    file.write_text("\n".join([head, *(f"{row.split(',')[0]},0" for row in rows), ""]))
    assert "NOT BEATEN" in workspace.here("grade")

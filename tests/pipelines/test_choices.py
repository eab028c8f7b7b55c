"""Blends and what compares them, lists them and stands beside their scores: external members, limits on views, class shares."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from stages import Workspace

import goldfold
from competition.config.digests import digest_of
from competition.ensemble.chain import Chain
from competition.ensemble.external_check import OTHER_IDS
from competition.ensemble.predictions import ViewPredictions
from competition.prepare.prepared import load_prepared

EXTERNAL_MEMBER = "  torch:\n    predictions: {{oof: {0}/oof.csv, test: {0}/test.npz}}\n"


def add_external_member(workspace: Workspace) -> None:
    """Add the external member torch: the predictions of `wide`, with its out-of-fold rows as CSV in reverse order."""
    parts = [ViewPredictions.load(workspace.views("wide", k) / "oof.npz") for k in range(3)]
    ids, probs = np.concatenate([p.ids for p in parts]), np.concatenate([p.view("identity") for p in parts])
    classes = load_prepared(workspace.work / "data").competition.classes
    table = pd.DataFrame(probs[::-1], columns=classes)
    table.assign(id=ids[::-1]).to_csv(workspace.folder / "oof.csv", index=False)
    test = ViewPredictions.load(workspace.views("wide", 0) / "test.npz")
    np.savez(workspace.folder / "test.npz", ids=test.ids, probs=test.view("identity"), classes=classes)
    text = EXTERNAL_MEMBER.format(workspace.folder)
    workspace.params.write_text(workspace.params.read_text().replace("predict:", f"{text}predict:"))


def test_an_external_member_is_part_of_the_blend_and_listed_and_is_not_trained(workspace: Workspace) -> None:
    before = workspace.weights()
    add_external_member(workspace)
    assert "made again" not in workspace.here("train", "predict") and workspace.weights() == before
    output = workspace.here("blend")
    assert "; folds of torch unknown; expected on 150 test rows: " in output  # beside the score
    assert set(Chain.load(workspace.blend / "chain.json").blend.weights) == {"slim", "wide", "torch"}
    again = workspace.here("blend", "report")  # a doubt stands beside the score whenever it is shown
    assert "blend: current" in again and "torch: folds unknown" in again
    assert "may be optimistic: folds of torch unknown" in workspace.page
    assert "took no part in any choice" not in workspace.page
    with pytest.warns(UserWarning, match="^torch: folds unknown: it cannot be verified") as warned:
        table = goldfold.open(workspace.params, work=workspace.folder / "work").scores()
    assert table.attrs["notes"] == [str(one.message) for one in warned]
    digest = output.partition("set predictions.folds: ")[2].split()[0][:10]
    text = workspace.params.read_text()
    workspace.params.write_text(text.replace("test.npz}", f"test.npz, folds: {digest}}}"))
    output = workspace.here("blend")
    assert "folds unknown" not in output and "other folds than ours" not in output
    error = workspace.refused_here("blend", f"members.torch.predictions.oof={workspace.folder}")
    assert f"members.torch.predictions.oof: {workspace.folder} is a folder" in error
    error = workspace.refused_here("train", member="torch")
    assert "MEMBER=torch: it was trained elsewhere, so it can be neither trained nor exported here" in error
    # It is listed with its files and rows, and incomplete runs with their folds.
    shutil.rmtree(workspace.fold("wide", 1))
    files = rf"{workspace.folder}/oof\.csv, {workspace.folder}/test\.npz"
    output = workspace.here("runs")
    runs = [r"wide@\w+ \* .* 2/3 incomplete ", r"slim@\w+ \* .* 3/3  "]
    for line in (rf"torch \*  +450 of 450 +150 of 150 +{files}$", *runs):
        assert re.search(f"^{line}", output, re.MULTILINE), line
    table = pd.read_csv(workspace.folder / "oof.csv", dtype=str)
    table[1:].to_csv(workspace.folder / "oof.csv", index=False)
    (workspace.folder / "test.npz").unlink()
    text = workspace.here("runs", member="torch")
    assert "  449 of 450  " in text and "  test.npz was not found  " in text and "slim@" not in text


def test_view_costs_matter_for_a_limit_only_and_test_rows_have_the_views_of_the_chain(workspace: Workspace) -> None:
    for file in sorted(workspace.work.glob("members/*/*/fold*/views/*/manifest.json")):
        manifest = json.loads(file.read_text())
        cost = manifest["result"]["seconds_per_1000"]
        assert cost.keys() == {"identity", "shift_up"} and min(cost.values()) > 0
        manifest["result"]["seconds_per_1000"] = {"identity": 1.0, "shift_up": 3.0}
        file.write_text(json.dumps(manifest))
    assert "blend: current" in workspace.here("blend")
    limited = "policy.seconds_limit=2"
    workspace.here("blend", sets=limited)
    policies = Chain.load(workspace.blend / "chain.json").policies
    assert {view for policy in policies.values() for view in policy} == {"identity"}
    assert "blend: current" in workspace.here("blend", sets=limited)
    assert workspace.scores["chain"] == digest_of(Chain.load(workspace.blend / "chain.json"))
    # Test rows must have the views of the scored chain.
    for fold in range(3):
        file = workspace.views("wide", fold) / "test.npz"
        test = ViewPredictions.load(file)
        ViewPredictions(test.ids, ("identity", "shift_down"), test.probs).save(file)
    words = "member wide has views ['identity', 'shift_up'] out of fold and ['identity', 'shift_down'] on test rows"
    assert words in workspace.refused_here("blend", force=True)


def test_blends_are_compared_on_rows_that_chose_nothing_in_either(workspace: Workspace) -> None:
    (first,) = (file.stem for file in workspace.submissions.glob("*.csv"))
    output = workspace.here("blend", sets="policy.method=mean")
    (second,) = {file.stem for file in workspace.submissions.glob("*.csv")} - {first}
    words = "repeated choices: 2 different blends on these 450 rows"
    assert words in output and "repeated choices: 2 different blends" in workspace.here("submissions")
    error = workspace.refused_here("compare_blends", a=first)
    assert "B= not given" in error and first in error and second in error
    assert "on 450 out-of-fold rows" in workspace.here("compare_blends", a=first, b=second)
    honest_oof_file = workspace.work / "blends" / second / "honest_oof.csv"
    table = pd.read_csv(honest_oof_file, dtype={"id": str}, keep_default_na=False)
    table.assign(scored=(np.arange(len(table)) >= 150).astype(int)).to_csv(honest_oof_file, index=False)
    comparison = workspace.here("compare_blends", a=first, b=second)
    assert "on 300 out-of-fold rows" in comparison
    assert "150 rows excluded: hyperparameters of one of the blends were chosen on them" in comparison


def test_the_doubts_of_a_blend_do_not_stand_for_another_one_with_the_same_submission(workspace: Workspace) -> None:
    add_external_member(workspace)
    alone, table = "blend.methods=[best]", pd.read_csv(workspace.folder / "oof.csv", dtype={"id": str})
    table.iloc[:60, :-1] = 0.1  # worse than the others, so it has no weight
    table.to_csv(workspace.folder / "oof.csv", index=False)
    shutil.rmtree(workspace.work / "blends")  # its blend without torch may give the same submission
    workspace.here("blend", sets=alone)
    clean = json.loads((workspace.blend / "manifest.json").read_text())["result"]["file"].removesuffix(".csv")
    file = workspace.folder / "test.npz"
    stored = dict(np.load(file))
    np.savez(file, **{**stored, "ids": np.roll(stored["ids"], 7)})
    (shuffled,) = re.findall(rf"calls this one ({clean}-\w{{6}})", workspace.here("blend", sets=alone))
    workspace.here("blend", sets=alone, force=True)
    lines = workspace.here("compare_blends", a=clean, b=shuffled).splitlines()
    assert [line.split(":")[0].strip() for line in lines if OTHER_IDS in line] == [shuffled]
    assert lines[1].endswith(f"; DOUBTED, because the score of {shuffled} is, see below")
    assert {folder.name for folder in (workspace.work / "blends").glob(f"{clean}*")} == {clean, shuffled}


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
    verbs = ("train", "list_blends", "runs", "submit", "submissions")
    shown = [re.search(beside, workspace.here(verb)) for verb in verbs]
    assert all(shown) and len({one[1] for one in shown}) == 1, shown  # of all training rows
    assert re.search(beside, output := workspace.here("grade")) and "NOT BEATEN" not in output
    (file,) = workspace.submissions.glob("*.csv")
    head, *rows = file.read_text().splitlines()
    file.write_text("\n".join([head, *(f"{row.split(',')[0]},0" for row in rows), ""]))
    assert "NOT BEATEN" in workspace.here("grade")

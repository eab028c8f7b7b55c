"""Blend, table, compare and noise as a user runs them: external members, limits on views, other seeds."""

import json
import re
import shutil
import warnings

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

EXTERNAL_MEMBER = "  torch:\n    predictions: {{oof: {0}/oof.csv, test: {0}/test.npz{1}}}\n"


def scores(workspace: Workspace) -> dict[str, object]:
    content: dict[str, object] = json.loads((workspace.blend / "scores.json").read_text())
    return content


def add_external_member(workspace: Workspace, folds: str = "") -> None:
    """Add the external member torch: the predictions of `wide`, with its out-of-fold rows as CSV in reverse order."""
    parts = [ViewPredictions.load(workspace.views("wide", k) / "oof.npz") for k in range(3)]
    ids, probs = np.concatenate([p.ids for p in parts]), np.concatenate([p.view("identity") for p in parts])
    classes = load_prepared(workspace.work / "data").competition.classes
    table = pd.DataFrame(probs[::-1], columns=classes)
    table.assign(id=ids[::-1]).to_csv(workspace.folder / "oof.csv", index=False)
    test = ViewPredictions.load(workspace.views("wide", 0) / "test.npz")
    np.savez(workspace.folder / "test.npz", ids=test.ids, probs=test.view("identity"), classes=classes)
    lines = workspace.params.read_text().splitlines(keepends=True)
    position = next(n for n, line in enumerate(lines) if line.startswith("predict:"))
    workspace.params.write_text(
        "".join([*lines[:position], EXTERNAL_MEMBER.format(workspace.folder, folds), *lines[position:]])
    )


def test_an_external_member_is_part_of_the_blend_and_is_not_trained(workspace: Workspace) -> None:
    before = workspace.weights()
    add_external_member(workspace)
    for stage in ("train", "predict"):
        assert "made again" not in workspace.do(stage) and workspace.weights() == before
    output = workspace.do("blend")
    assert "; folds of torch unknown; expected on 150 test rows: " in output  # beside the score
    assert "torch: folds unknown" in output and set(scores(workspace)["members"]) == {"slim", "wide", "torch"}
    assert set(Chain.load(workspace.blend / "chain.json").blend.weights) == {"slim", "wide", "torch"}
    again = workspace.do("blend")  # a doubt stands beside the score whenever it is shown
    assert "blend: current" in again and "torch: folds unknown" in again
    workspace.do("report")
    page = (workspace.work / "report.html").read_text()
    assert "torch: folds unknown" in page and "may be optimistic: folds of torch unknown" in page
    assert "took no part in any choice" not in page
    with pytest.warns(UserWarning, match="^torch: folds unknown: it cannot be verified") as warned:
        table = goldfold.open(workspace.params, work=workspace.folder / "work").scores()
    assert table.attrs["notes"] == [str(one.message) for one in warned] and warned[0].filename == __file__
    digest = output.partition("set predictions.folds: ")[2].split()[0][:10]
    (workspace.folder / "params.yaml").write_text(
        workspace.params.read_text().replace("test.npz}", f"test.npz, folds: {digest}}}")
    )
    output = workspace.do("blend")
    assert "folds unknown" not in output and "other folds than ours" not in output
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert goldfold.open(workspace.params, work=workspace.folder / "work").scores().attrs["notes"] == []
    oof = workspace.folder / "oof.csv"
    for path, words in (
        (workspace.folder, "is a folder"),
        ("~/oof.csv", "`~` is not expanded"),
        ("o*.csv", "list the files"),
    ):
        error = workspace.refused("blend", sets=f"members.torch.predictions.oof={path}")
        assert f"members.torch.predictions.oof: {path}" in error and words in error
    oof.unlink()
    assert f"members.torch.predictions.oof: {oof} was not found" in workspace.refused("blend")
    elsewhere = "MEMBER=torch: it was trained elsewhere, so it can be neither trained nor exported here"
    for stage, *more in (("train",), ("noise", "--seeds=2"), ("export",)):
        error = workspace.refused(stage, "--member=torch", *more)
        assert f"{elsewhere}; the members trained here are slim, wide" in error
    assert "no such member; the members are slim, wide, torch" in workspace.refused("train", "--member=touch")


def test_a_blend_with_an_external_member_says_what_predicts_new_images_instead(workspace: Workspace) -> None:
    add_external_member(workspace)
    for members, words in (
        (
            "[slim,wide,torch]",
            '`make blend SET="blend.members=[slim,wide]"` blends without it, MEMBER=slim takes one member',
        ),
        ("[torch]", "cannot predict new images; none of its members was trained here"),
    ):
        sets = f"blend.methods=[equal] blend.members={members}"
        workspace.do("blend", sets=sets)
        assert words in workspace.refused("export", sets=sets)


def test_external_members_are_listed_with_their_files_and_rows(workspace: Workspace) -> None:
    add_external_member(workspace)
    prepared = load_prepared(workspace.work / "data")
    train, test = len(prepared.part("train")), len(prepared.part("test"))
    files = rf"{workspace.folder}/oof\.csv, {workspace.folder}/test\.npz"
    output = workspace.do("runs")
    assert re.search(rf"^torch \*  +{train:,} of {train:,} +{test} of {test} +{files}$", output, re.MULTILINE)
    assert (
        re.search(r"^slim@\w+ \* ", output, re.MULTILINE) and "runs: external members were trained elsewhere" in output
    )
    assert "slim@" not in workspace.do("runs", "--member=torch") and "torch" not in workspace.do(
        "runs", "--member=slim"
    )
    assert re.search(r"^torch  +", workspace.do("runs", sets="blend.members=[slim,wide]"), re.MULTILINE)

    table = pd.read_csv(workspace.folder / "oof.csv", dtype=str)
    table[1:].to_csv(workspace.folder / "oof.csv", index=False)
    (workspace.folder / "test.npz").unlink()
    text = workspace.do("runs")
    assert f"  {train - 1:,} of {train:,}  " in text and "  test.npz was not found  " in text
    (workspace.folder / "oof.csv").write_text("name\nx\n")
    assert "  unreadable  " in workspace.do("runs")


def test_view_costs_matter_only_for_a_limit_in_seconds(workspace: Workspace) -> None:
    manifests = sorted(workspace.work.glob("members/*/*/fold*/views/*/manifest.json"))
    costs = [json.loads(file.read_text())["result"]["seconds_per_1000"] for file in manifests]
    assert all(cost.keys() == {"identity", "shift_up"} and min(cost.values()) > 0 for cost in costs)

    def set_view_seconds(seconds: float) -> None:
        for file in manifests:
            manifest = json.loads(file.read_text())
            manifest["result"]["seconds_per_1000"] = {"identity": seconds, "shift_up": 3 * seconds}
            file.write_text(json.dumps(manifest))

    set_view_seconds(1.0)
    assert "blend: current" in workspace.do("blend")
    limited = "policy.seconds_limit=2"
    workspace.do("blend", sets=limited)
    policies = Chain.load(workspace.blend / "chain.json").policies
    assert {view for policy in policies.values() for view in policy} == {"identity"}
    assert "blend: current" in workspace.do("blend", sets=limited)
    set_view_seconds(10.0)
    assert "allows no view; the cheapest takes 10 s" in workspace.refused("blend", sets=limited)
    for file in manifests:
        manifest = json.loads(file.read_text())
        del manifest["result"]["seconds_per_1000"]
        file.write_text(json.dumps(manifest))
    output = workspace.do("blend", sets=limited)
    assert "the cost of slim's views is unknown: each counts as one second of policy.seconds_limit" in output


def test_test_rows_must_have_the_views_of_the_scored_chain(workspace: Workspace) -> None:
    assert scores(workspace)["chain"] == digest_of(Chain.load(workspace.blend / "chain.json"))
    for fold in range(3):
        file = workspace.views("wide", fold) / "test.npz"
        test = ViewPredictions.load(file)
        ViewPredictions(test.ids, ("identity", "shift_down"), test.probs).save(file)
    error = workspace.refused("blend", "--force")
    assert (
        "member wide has views ['identity', 'shift_up'] out of fold and ['identity', 'shift_down'] on test rows"
        in error
    )


def test_blends_are_compared_on_rows_that_the_prepared_data_still_contain(workspace: Workspace) -> None:
    (first,) = (file.stem for file in workspace.submissions.glob("*.csv"))
    output = workspace.do("blend", sets="policy.method=mean")
    (second,) = {file.stem for file in workspace.submissions.glob("*.csv")} - {first}
    assert (
        "repeated choices: 2 different blends on these 450 rows; the best of their honest scores is expected" in output
    )
    output = workspace.do("submissions")
    assert "repeated choices: 2 different blends" in output and "Honest scores are on" not in output
    assert f" on the 450 rows of {second[:8]}'s honest score\n" in output
    with (workspace.submissions / "ledger.jsonl").open("r+") as file:
        line = json.loads(file.readlines()[0])
        file.write(json.dumps(line | {"digest": "f" * 64, "file": "ffffffffffff.csv", "oof_rows": 300}) + "\n")
    output = workspace.do("submissions")
    assert "Honest scores are on different rows: " in output and "ffff on 300 rows.\n" in output
    workspace.do("report")
    assert "2 different blends on these 450 rows" in (workspace.work / "report.html").read_text(encoding="utf-8")
    compare_error = workspace.refused("compare_blends")
    assert "A= and B= not given" in compare_error and first in compare_error and second in compare_error
    assert "B= not given" in workspace.refused("compare_blends", f"--a={first}")
    assert "A=zz matches no blend; existing blends: " in workspace.refused("compare_blends", "--a=zz", f"--b={first}")
    error = workspace.refused("compare_submissions")
    assert "A= and B= name two submissions" in error and first in error and second in error

    assert "on 450 out-of-fold rows" in workspace.do("compare_blends", f"--a={first}", f"--b={second}")
    honest_oof_file = workspace.work / "blends" / second / "honest_oof.csv"
    table = pd.read_csv(honest_oof_file, dtype={"id": str}, keep_default_na=False)
    table.assign(scored=(np.arange(len(table)) >= 150).astype(int)).to_csv(honest_oof_file, index=False)
    comparison = workspace.do("compare_blends", f"--a={first}", f"--b={second}")
    assert "on 300 out-of-fold rows" in comparison
    assert "150 rows excluded: hyperparameters of one of the blends were chosen on them" in comparison


def test_blends_with_the_same_submission_are_kept_and_compared_apart(workspace: Workspace) -> None:
    (first,) = (file.stem for file in workspace.submissions.glob("*.csv"))
    table = workspace.work / "blends" / first / "honest_oof.csv"  # as another blend with this submission would have it
    table.write_text(table.read_text().replace(",0,1\n", ",1,1\n"))
    output = workspace.do("blend", "--force")
    (second,) = re.findall(rf"`make compare-blends` calls this one ({first}-\w{{6}})", output)
    assert ", a gain" in workspace.do("compare_blends", f"--a={first}", f"--b={second}")
    assert re.search(rf"{first}.csv was given by {first} \(.+\) and {second} \(.+\); ", workspace.do("submissions"))
    workspace.do("blend", "--force")
    assert {folder.name for folder in (workspace.work / "blends").iterdir()} == {first, second}


def test_the_doubts_of_a_blend_do_not_stand_for_another_one_with_the_same_submission(workspace: Workspace) -> None:
    add_external_member(workspace)
    alone, table = "blend.methods=[best]", pd.read_csv(workspace.folder / "oof.csv", dtype={"id": str})
    table.iloc[:60, :-1] = 0.1  # worse than the others, so it has no weight
    table.to_csv(workspace.folder / "oof.csv", index=False)
    shutil.rmtree(workspace.work / "blends")  # its blend without torch may give the same submission
    workspace.do("blend", sets=alone)
    clean = json.loads((workspace.blend / "manifest.json").read_text())["result"]["file"].removesuffix(".csv")
    file = workspace.folder / "test.npz"
    stored = dict(np.load(file))
    np.savez(file, **{**stored, "ids": np.roll(stored["ids"], 7)})
    (shuffled,) = re.findall(rf"calls this one ({clean}-\w{{6}})", workspace.do("blend", sets=alone))
    workspace.do("blend", "--force", sets=alone)
    lines = workspace.do("compare_blends", f"--a={clean}", f"--b={shuffled}").splitlines()
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
    assert "the blend is of other data: 0 of its 450 rows are in the prepared data" in workspace.refused("label_issues")


def test_class_shares_of_the_test_rows_change_the_submission_and_no_score(workspace: Workspace) -> None:
    for file in workspace.work.glob("members/*/*/fold*/views/*/test.npz"):  # doubtful predictions, which shares decide
        test = ViewPredictions.load(file)
        doubtful = test.probs.astype(np.float32) ** 0.2
        ViewPredictions(test.ids, test.views, doubtful / doubtful.sum(-1, keepdims=True)).save(file)
    workspace.do("blend", "--force")
    plain, before = scores(workspace), (workspace.blend / "submission.csv").read_text()
    output = workspace.do("blend", sets="blend.class_shares=test")
    assert "adapted to the class shares of the test rows" in output and "adapted to" in workspace.do(
        "blend", sets="blend.class_shares=test"
    )
    adapted = scores(workspace)
    assert adapted["honest"] == plain["honest"] and "class_shares" not in plain
    shares = np.load(workspace.blend / "test.npz")["scores"].mean(0)
    changed = int(re.search(r"labels changed: (\d+)", output)[1])
    after = (workspace.blend / "submission.csv").read_text()
    lines = [(a, b) for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b]
    assert len(lines) == changed > 0 and shares.sum() == pytest.approx(1, abs=1e-3)

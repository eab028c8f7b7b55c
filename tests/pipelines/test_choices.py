"""Blend, table, compare and noise as a user runs them: members from elsewhere, limits on views, other seeds."""

import json

import numpy as np
import pandas as pd
import pytest
from stages import Workspace

from competition.data.prepared import load_prepared
from competition.ensemble.chain import Chain
from competition.ensemble.predictions import ViewPredictions

ELSEWHERE = "  torch:\n    predictions: {{oof: {0}/oof.csv, test: {0}/test.npz{1}}}\n"


def scores(place: Workspace) -> dict[str, object]:
    found: dict[str, object] = json.loads((place.work / "blend" / "scores.json").read_text())
    return found


def with_torch(place: Workspace, folds: str = "") -> None:
    """A member made elsewhere joins: `wide` again by other files, its out-of-fold rows as CSV, backwards."""
    parts = [ViewPredictions.load(place.work / "members" / "wide" / f"fold{k}" / "views" / "oof.npz") for k in range(3)]
    ids, probs = np.concatenate([p.ids for p in parts]), np.concatenate([p.view("identity") for p in parts])
    table = pd.DataFrame(probs[::-1], columns=load_prepared(place.work / "data").competition.classes)
    table.assign(id=ids[::-1]).to_csv(place.folder / "oof.csv", index=False)
    test = ViewPredictions.load(place.work / "members" / "wide" / "fold0" / "views" / "test.npz")
    np.savez(place.folder / "test.npz", ids=test.ids, probs=test.view("identity"))
    lines = place.params.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if line.startswith("predict:"))
    place.params.write_text("".join([*lines[:at], ELSEWHERE.format(place.folder, folds), *lines[at:]]))


def test_a_member_made_elsewhere_joins_the_blend_and_trains_nothing(place: Workspace) -> None:
    before = place.weights()
    with_torch(place)
    for stage in ("train", "predict"):
        assert "made again" not in place.do(stage) and place.weights() == before
    told = place.do("blend")
    assert "torch: folds unknown" in told and set(scores(place)["members"]) == {"slim", "wide", "torch"}  # type: ignore[call-overload]
    assert set(Chain.load(place.work / "blend" / "chain.json").blend.weights) == {"slim", "wide", "torch"}
    digest = told.partition("set predictions.folds: ")[2].split()[0]
    (place.folder / "params.yaml").write_text(
        place.params.read_text().replace("test.npz}", f"test.npz, folds: {digest}}}")
    )
    said = place.do("blend")
    assert "folds unknown" not in said and "other folds than ours" not in said
    (place.folder / "oof.csv").unlink()
    assert "members.torch.predictions.oof: " in place.refused("blend")
    assert "no such member; the members are slim, wide" in place.refused("train", "--member=torch")


def test_one_file_per_fold_model_is_averaged_and_a_member_that_saw_its_rows_is_reported(place: Workspace) -> None:
    views = [place.work / "members" / "wide" / f"fold{k}" / "views" for k in range(3)]
    for k, folder in enumerate(views):
        test = ViewPredictions.load(folder / "test.npz")
        np.savez(place.folder / f"test{k}.npz", ids=test.ids, probs=test.view("identity"))
    with_torch(place)
    files = ", ".join(f"{place.folder}/test{k}.npz" for k in range(3))
    text = place.params.read_text().replace(f"test: {place.folder}/test.npz", f"test: [{files}]")
    place.params.write_text(text)
    assert "not out-of-fold?" not in place.do("blend")
    before = json.loads((place.work / "blend" / "manifest.json").read_text())["depends"]["predictions"]["torch"]
    assert len(before["test"].split(",")) == 3

    prepared = load_prepared(place.work / "data")
    train = prepared.part("train")
    one_hot = np.eye(len(prepared.competition.classes))[train["label"]]
    table = pd.DataFrame(one_hot, columns=prepared.competition.classes)
    table.assign(id=train["id"]).to_csv(place.folder / "oof.csv", index=False)
    assert "torch: not out-of-fold? its confidence is 1.000 on training rows" in place.do("blend")


def test_a_limit_in_seconds_is_kept_and_nothing_else_depends_on_how_long_views_took(place: Workspace) -> None:
    manifests = sorted(place.work.glob("members/*/fold*/views/manifest.json"))
    costs = [json.loads(file.read_text())["result"]["seconds_per_1000"] for file in manifests]
    assert all(cost.keys() == {"identity", "shift_up"} and min(cost.values()) > 0 for cost in costs)

    def slower(times: float) -> None:
        for file in manifests:
            told = json.loads(file.read_text())
            told["result"]["seconds_per_1000"] = {"identity": times, "shift_up": 3 * times}
            file.write_text(json.dumps(told))

    slower(1.0)
    assert "blend: current" in place.do("blend")
    limited = "policy.seconds_limit=2"
    place.do("blend", sets=limited)
    policies = Chain.load(place.work / "blend" / "chain.json").policies
    assert {view for policy in policies.values() for view in policy} == {"identity"}
    assert "blend: current" in place.do("blend", sets=limited)
    slower(10.0)
    assert "allows no view; the cheapest takes 10 s" in place.refused("blend", sets=limited)
    for file in manifests:
        told = json.loads(file.read_text())
        del told["result"]["seconds_per_1000"]
        file.write_text(json.dumps(told))
    said = place.do("blend", sets=limited)
    assert "the cost of slim's views is unknown: each counts as one second of policy.seconds_limit" in said


def test_the_chain_of_the_test_rows_is_the_one_that_was_scored(place: Workspace) -> None:
    assert scores(place)["chain"] == Chain.load(place.work / "blend" / "chain.json").digest()
    for fold in range(3):
        file = place.work / "members" / "wide" / f"fold{fold}" / "views" / "test.npz"
        test = ViewPredictions.load(file)
        ViewPredictions(test.ids, ("identity", "shift_down"), test.probs).save(file)
    told = place.refused("blend", "--force")
    assert (
        "member wide has views ['identity', 'shift_up'] out of fold and ['identity', 'shift_down'] on test rows" in told
    )


def test_a_seed_study_is_what_later_gains_are_judged_by(place: Workspace) -> None:
    (first,) = (file.stem for file in place.submissions.glob("*.csv"))
    quick = "train.epochs=1"  # a study of a member trained for one epoch
    assert "blend, table and compare use this spread" in place.do("noise", "--member=slim", "--seeds=2", sets=quick)
    study = json.loads((place.work / "noise" / "slim.json").read_text())
    assert study["spread"] > 0 and len(study["scores"]) == 2
    told = place.do("blend")
    assert "slim: its seed study is of other parameters or data" in told and "other seeds" not in told
    told = place.do("blend", sets=f"{quick} blend.methods=[best]")
    assert f"spread over seeds (make noise): slim {study['spread']:.4f}; not measured: wide" in told
    assert "(other seeds ± " in told.partition("over equal weights")[2].partition("\n")[0]
    (second,) = {file.stem for file in place.submissions.glob("*.csv")} - {first}
    compared = place.do("compare", f"--a={first}", f"--b={second}", sets=quick)
    assert f"(other seeds ± {study['spread'] / 2:.4f})" in compared  # half of it is slim's, and then nothing
    assert "other seeds ±" in place.do("table", sets=quick)


def test_what_views_do_is_told_member_by_member(place: Workspace) -> None:
    told = place.do("blend", "--force", sets="policy.method=mean")
    assert told.count("rows fixed, ") == 2 and "TTA against the identity view, honest" in told
    views: dict[str, dict[str, dict[str, int]]] = scores(place)["views"]  # type: ignore[assignment]
    for name in ("slim", "wide"):
        effect = views[name]["effect"]
        assert effect["changed"] >= effect["corrected"] + effect["corrupted"] > 0
        assert f"{name:<16} {effect['corrected']} rows fixed, {effect['corrupted']} broken" in told


@pytest.mark.parametrize("mixing", ["geometric", "rank"])
def test_other_means_of_views_go_all_the_way_to_a_submission(place: Workspace, mixing: str) -> None:
    ranks = " policy.by=metric blend.mixing=rank" if mixing == "rank" else ""
    place.do("blend", sets=f"policy.method=mean policy.mixing={mixing}{ranks}")
    assert Chain.load(place.work / "blend" / "chain.json").view_mixing == mixing
    if ranks:
        assert "with policy.mixing rank, which gives no probabilities" in place.refused(
            "blend", sets="policy.mixing=rank"
        )


def test_two_blends_of_data_that_have_changed_since_are_compared_on_the_rows_that_are_still_there(
    place: Workspace,
) -> None:
    (first,) = (file.stem for file in place.submissions.glob("*.csv"))
    told = place.do("blend", sets="blend.methods=[best]")
    (second,) = {file.stem for file in place.submissions.glob("*.csv")} - {first}
    assert "repeated choices: 2 different blends on these rows; the best of their honest scores is expected" in told
    assert "repeated choices: 2 different blends" in place.do("submissions")
    place.do("report")
    assert "2 different blends on these rows" in (place.work / "report.html").read_text(encoding="utf-8")
    needs_two = place.refused("compare")
    assert "A= and B= not given" in needs_two and first in needs_two and second in needs_two
    assert "B= not given" in place.refused("compare", f"--a={first}")
    assert "A=zz matches 0 blends, expected one" in place.refused("compare", "--a=zz", f"--b={first}")
    neither = place.refused("diff")
    assert "A= and B= name two submissions" in neither and first in neither and second in neither

    assert "on 1,347 out-of-fold rows" in place.do("compare", f"--a={first}", f"--b={second}")
    answers = place.work / "blends" / second / "honest_oof.csv"
    table = pd.read_csv(answers, dtype={"id": str}, keep_default_na=False)
    table.assign(scored=(np.arange(len(table)) >= 449).astype(int)).to_csv(answers, index=False)
    compared = place.do("compare", f"--a={first}", f"--b={second}")
    assert "on 898 out-of-fold rows" in compared
    assert "449 rows are excluded: they chose hyperparameters of one of the blends" in compared

    index = pd.read_csv(place.work / "data" / "index.csv", dtype={"id": str}, keep_default_na=False)
    gone = index.index[index["id"].isin(table["id"][-7:])]
    index.drop(index=gone).to_csv(place.work / "data" / "index.csv", index=False)
    compared = place.do("compare", f"--a={first}", f"--b={second}")
    assert "on 891 out-of-fold rows" in compared
    assert "7 rows are excluded: they are no longer in the prepared data" in compared


def test_label_issues_of_data_that_have_changed_since_are_those_of_the_rows_that_are_still_there(
    place: Workspace,
) -> None:
    file = place.work / "data" / "index.csv"
    index = pd.read_csv(file, dtype={"id": str}, keep_default_na=False)
    index.drop(index=index.index[index["part"] == "train"][:7]).to_csv(file, index=False)
    told = place.do("issues_in_labels")
    assert "7 of 1,347 rows are left out: the prepared data no longer have them" in told
    assert "of 1,340 labels are doubtful" in told
    index.assign(id=[f"other{n}" for n in range(len(index))]).to_csv(file, index=False)
    assert "the blend is of other data: 0 of its 1,347 rows are in the prepared data" in place.refused(
        "issues_in_labels"
    )

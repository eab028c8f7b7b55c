"""make report on the finished workspace, whose results are changed as a user or a later command changes them."""

import re
import shutil

import pandas as pd
from stages import Workspace

from competition.files.manifest import write_json
from competition.preflight.results import PreflightResult
from competition.prepare.prepared import load_prepared
from competition.submission import ledger
from competition.workspace.scores import seed_study_path

SECTION = re.compile(r'<section id="(\w+)">')


def section_of(page: str, key: str) -> str:
    (section,) = re.findall(f'<section id="{key}">.*?</section>', page, re.DOTALL)
    return section


def test_the_page_has_the_figures_of_the_terminal_and_texts_that_are_escaped_and_needs_no_other_files(
    workspace,
) -> None:
    data, prepared = workspace.work / "data", load_prepared(workspace.work / "data")
    (test, *_), (train, *_) = (prepared.part(part).to_dict("records") for part in ("test", "train"))
    leak = {"kind": "test in train", "id": test["id"], "match": train["id"], "label": train["label"], "exact": True}
    pd.DataFrame([leak]).to_csv(data / "leaks.csv", index=False)
    value = prepared.competition.label_values[3]
    pd.DataFrame([{"group": 0, "id": "twice", "label": value}]).to_csv(data / "conflicts.csv", index=False)
    unreadable = {"id": "<b>rose", "part": "train", "shard": "0.tfrec", "problem": "<i>cut"}
    pd.DataFrame([unreadable]).to_csv(data / "unreadable.csv", index=False)
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
    assert "<b>rose" not in page and "<i>cut" not in page and set(re.findall(r'src="([^/]*)/', page)) == {"data:image"}
    assert "http://" not in page and "https://" not in page and page.count("<script") == 1 and "<link" not in page
    assert str(workspace.folder) not in page.replace(str(workspace.params), "")
    name = prepared.competition.classes[3]
    assert re.search(rf"twice</\w+><td[^>]*>{name}<", page)  # of conflicts.csv


def test_a_blend_of_other_parameters_and_predictions_is_reported_and_missing_pictures_are_decoded(workspace) -> None:
    shutil.rmtree(workspace.views("wide", 1))
    shutil.rmtree(workspace.work / "cache")
    output, page = workspace.here("report", sets="blend.rounds=9"), workspace.page
    assert "The blend was made with other parameters (blend.rounds: 3 -&gt; 9)" in page
    assert "blend.rounds: 3 -> 9" in output and "The blend has other fold models or predictions of wide" in output
    assert "<img" in page and "No pictures" not in page  # decoded from the records
    label = "(of the current parameters, not of the blend)</h2>"
    labelled = [key for key in SECTION.findall(page) if label in section_of(page, key)]
    assert labelled == ["members", "tuning", "costs"]


def test_a_blend_of_other_data_is_shown_with_a_warning_and_after_an_error_the_previous_page_is_kept(workspace) -> None:
    described = workspace.work / "data" / "competition.json"
    text = described.read_text()
    described.write_text(text.replace('"nine"', '"ten"'))
    assert "The blend is of other data than those that are here now" in workspace.here("report")
    before = workspace.page
    keys = SECTION.findall(before)
    assert "blend" in keys and not {"classes", "map", "calibration", "errors"} & set(keys)
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


def test_optional_results_have_their_sections_if_they_are_of_these_parameters_and_this_competition(
    workspace: Workspace,
) -> None:
    result = PreflightResult("train", 64, "too_big", 20 * 2**30, 16 * 2**30, remedy="lower train.batch").__dict__
    preflight_results = {"topology": "v5e-8", "backend": "jax", "members": {"slim": {"train": result}}, "changes": []}
    write_json(workspace.work / "preflight" / "v5e-8.json", preflight_results)
    results = workspace.job().workspace
    for name in ("wide", "slim"):  # both of the parameters of wide
        study = {"spread": 0.0123, "scores": [0.8, 0.82, 0.81]}
        write_json(seed_study_path(results, name, results.params.members["wide"]), study)
    ledger_file = workspace.submissions / "ledger.jsonl"
    (entry,) = ledger.read(ledger_file).entries
    ledger.append(ledger_file, ledger.Event(entry.digest, "scored", "7", 0.81234, 0.79876, slug="roses"))
    slug = "competition.slug=https://www.kaggle.com/competitions/roses"
    workspace.here("list_blends", "report", sets=slug)
    page, scores = workspace.page, ("<b>0.81234</b>", "<b>0.79876</b>", "public leaderboard")
    assert all(text in page for text in ("DOES NOT FIT", "20.00 GiB", "bagged", *scores))
    assert page.count("<td>0.0123</td>") == 1 and "slim: its seed study is of other parameters" in page
    workspace.here("report", sets="competition.slug=tulips")
    assert not [text for text in scores if text in workspace.page]


def test_scores_of_rows_that_chose_hyperparameters_are_marked_wherever_they_are_shown(workspace) -> None:
    own = "alpha: 0.25, weights: none"
    workspace.params.write_text(workspace.params.read_text().replace(own, f"{own}, tuned_folds: [0]"))
    output = workspace.here("train", "predict", "blend", "report", "runs")  # the fold models are copied
    page = workspace.page
    members, runs = section_of(page, "members"), section_of(page, "runs")
    assert '<th scope="col">mean of folds 1, 2</th>' in members
    assert re.search(r">slim</th><td>0\.\d{4} †</td><td>0\.\d{4}</td>", members)
    assert re.search(r">wide</th><td>0\.\d{4}</td>", members)
    assert len(re.findall(r"<td>0\.\d{4} †</td>", runs)) == 1  # not of the earlier run
    assert "those of fold 0 chose hyperparameters and are left out" in section_of(page, "overview")
    assert re.search(r"0\.\d{4} †", output) and "† rows that chose the run's hyperparameters" in output

"""make report on a small competition: generated images and predictions, real stages."""

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, executable
from builders import ROOT, run_of
from PIL import Image
from stages import Workspace

from competition.config.params_file import load_params, parse_overrides
from competition.ensemble.predictions import ViewPredictions
from competition.files.manifest import write_json, write_manifest
from competition.images.decoded_cache import cache_file
from competition.preflight.results import PreflightResult
from competition.prepare.prepared import load_prepared
from competition.submission import ledger
from competition.workspace.dependencies import fold_manifest_path, fold_model, fold_views
from competition.workspace.runs import Run, write_run_file
from competition.workspace.scores import seed_study_path
from competition.workspace.studies import tuning_dependencies, tuning_result_path
from competition.workspace.workspace import Workspace as LibraryWorkspace

NAMES = ("<b>rose", 'tulip & "co"', "aster")
PHOTOS_PER_CLASS, FOLDS, VIEWS = 15, 3, ("identity", "shift_up")
PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: photos, adapter: folder, source: SOURCE}}
prepare: {{folds: 3}}
train: {{epochs: 3}}
members:
  slim: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none}}
  wide: {{architecture: cnn, image_size: 16, alpha: 0.5, weights: none}}
predict: {{views: [identity, shift_up]}}
policy: {{rounds: 2}}
blend: {{rounds: 3, bags: 2}}
honest: {{resamples: 50}}
"""


class ReportWorkspace(Workspace):
    @property
    def work(self) -> Path:
        return self.folder / "work" / "photos"

    @property
    def page(self) -> str:
        return (self.work / "report.html").read_text(encoding="utf-8")


def photo(number: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (12, 12, 3), np.uint8)
    Image.fromarray(pixels).resize((48, 48)).save(buffer, "PNG")
    return buffer.getvalue()


def write_source(source: Path) -> None:
    """Write photos of three classes: one occurs twice, one has two labels, one is also a test image."""
    names = [f"i{n:02}" for n in range(PHOTOS_PER_CLASS * len(NAMES) - 1)] + ["<i>last"]
    photos = {name: photo(n) for n, name in enumerate(names)}
    photos["i03"], photos["i20"] = photos["i00"], photos["i01"]  # duplicates within one class and between two classes
    test_photos = {f"t{n}": photo(900 + n) for n in range(8)} | {"t8": photos["i05"]}
    source.mkdir()
    for name, data in (photos | test_photos).items():
        (source / f"{name}.png").write_bytes(data)
    quoted = ['"' + name.replace('"', '""') + '"' for name in NAMES]
    rows = [f"{name},{quoted[n // PHOTOS_PER_CLASS]}" for n, name in enumerate(names)]
    (source / "train.csv").write_text("\n".join(["id,label", *rows]) + "\n")
    (source / "test.csv").write_text("\n".join(["id", *test_photos]) + "\n")
    (source / "sample_submission.csv").write_text(
        "\n".join(["id,label", *(f"{t},{quoted[0]}" for t in test_photos)]) + "\n"
    )


def write_fold_models(workspace: ReportWorkspace) -> None:
    """Write fold models and predictions like `make train predict`: mostly correct, some confidently wrong."""
    params, prepared = load_params(workspace.params), load_prepared(workspace.work / "data")
    train, test = prepared.part("train"), prepared.part("test")
    for seed, name in enumerate(params.members):
        run = run_of(workspace.work, prepared, params, name)
        rng = np.random.default_rng(seed)
        for fold in range(FOLDS):
            held_out = train[train["fold"] == fold]
            oof = random_predictions(rng, held_out["id"].to_numpy(str), held_out["label"].to_numpy())
            test_predictions = random_predictions(rng, test["id"].to_numpy(str), rng.integers(0, len(NAMES), len(test)))
            manifest = fold_manifest_path(run, fold)
            manifest.parent.mkdir(parents=True, exist_ok=True)
            np.savez(manifest.with_name("weights.npz"), w=np.full(1000, seed + fold, np.float32))
            manifest.with_name("history.csv").write_text(
                "epoch,loss,learning_rate,held_out\n1,1.5,0.004,nan\n2,0.9,0.002,0.61\n3,0.7,0.0,0.8125\n"
            )
            oof.save(manifest.with_name("oof.npz"))
            files = [manifest.with_name(file) for file in ("weights.npz", "history.csv", "oof.npz")]
            result = {"held_out": 0.8125, "epoch": 3, "held_out_last": 0.8125, "loss": 0.7, "seconds": 41.0}
            write_manifest(manifest, fold_model(run, fold).depends, files, result, {})
            write_views(workspace, run, fold, oof, test_predictions)


def fill_cache(workspace: ReportWorkspace) -> None:
    """Write the cache of decoded training images, like `make train`."""
    prepared = load_prepared(workspace.work / "data")
    ids, fit = prepared.part("train")["id"].to_numpy(str), load_params(workspace.params).prepare.fit
    file = cache_file(workspace.work / "cache", prepared.digest, ids, 16, fit)
    file.parent.mkdir(exist_ok=True)
    np.save(file, np.random.default_rng(0).integers(0, 256, (len(ids), 16, 16, 3), np.uint8))


def write_views(
    workspace: ReportWorkspace, run: Run, fold: int, oof: ViewPredictions, test_predictions: ViewPredictions
) -> None:
    params = load_params(workspace.params)
    manifest = fold_views(run, params, fold).manifest
    manifest.parent.mkdir(parents=True, exist_ok=True)
    oof.save(manifest.with_name("oof.npz"))
    test_predictions.save(manifest.with_name("test.npz"))
    files = [manifest.with_name("oof.npz"), manifest.with_name("test.npz")]
    depends = fold_views(run, params, fold).depends
    write_manifest(manifest, depends, files, {"seconds": 2.0}, {})


def random_predictions(rng: np.random.Generator, ids: np.ndarray, labels: np.ndarray) -> ViewPredictions:
    """Predictions of which a fifth is confidently wrong, identical in all views."""
    predicted = np.where(rng.random(len(ids)) < 0.2, (labels + 1) % len(NAMES), labels)
    scores = rng.random((len(ids), len(VIEWS), len(NAMES))) * 0.3
    scores[np.arange(len(ids)), :, predicted] += 2
    return ViewPredictions(ids, VIEWS, (scores / scores.sum(-1, keepdims=True)).astype(np.float16))


@pytest.fixture(scope="session")
def prepared_workspace(tmp_path_factory: pytest.TempPathFactory) -> ReportWorkspace:
    workspace = ReportWorkspace(tmp_path_factory.mktemp("report"))
    write_source(workspace.folder / "photos")
    workspace.params.write_text(PARAMS.replace("SOURCE", str(workspace.folder / "photos")))
    workspace.do("download")
    output = workspace.do("prepare")
    assert f"none crosses a fold: {workspace.work}/data/duplicates.csv" in output
    assert f"(prepare.label_conflicts: keep): {workspace.work}/data/conflicts.csv" in output
    return workspace


@pytest.fixture(scope="session")
def blended(
    prepared_workspace: ReportWorkspace, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ReportWorkspace, str]:
    """(workspace with a report, output of blend); tests must not change it."""
    workspace = ReportWorkspace(prepared_workspace.copy_to(tmp_path_factory.mktemp("blended")).folder)
    write_fold_models(workspace)
    fill_cache(workspace)
    output = workspace.do("blend", "--verbose")
    workspace.do("report")
    return workspace, output


@pytest.fixture
def workspace(blended: tuple[ReportWorkspace, str], tmp_path: Path) -> ReportWorkspace:
    return ReportWorkspace(blended[0].copy_to(tmp_path).folder)


def test_the_page_shows_the_same_figures_as_the_terminal(blended) -> None:
    workspace, output = blended
    (honest,) = re.findall(r"honest \w+ (\d\.\d{4} ± \d\.\d{4})", output)
    (chosen,) = re.findall(r"the blend \(.*\) scores (\d\.\d{4})", output)
    (band,) = re.findall(r"test rows: (\d\.\d{4} to \d\.\d{4})", output)
    for figure in (honest, band):
        assert f"<b>{figure}</b>" in workspace.page
    assert (
        f"blend, rows that chose it {chosen} (optimistic)" in workspace.page
        and f'<p class="verdict">macro_f1_present {honest} on rows' in workspace.page
    )
    for name, alone, worth in re.findall(r"^  (slim|wide) +(\d\.\d{4}) +([+-]\d\.\d{4})  ", output, re.M):
        assert f'<th scope="row" class="word">{name}</th><td>{alone}</td><td>{worth}</td>' in workspace.page


SECTION = re.compile(r'<section id="(\w+)">')


def section_of(page: str, key: str) -> str:
    (section,) = re.findall(f'<section id="{key}">.*?</section>', page, re.DOTALL)
    return section


def test_sections_without_data_say_why_in_one_sentence(blended) -> None:
    page = blended[0].page
    of_blend = "overview next blend views worth members tuning classes map calibration errors"
    others = "gradcam samples data caveats runs leaderboard ledger costs made"
    assert SECTION.findall(page) == f"{of_blend} {others}".split()
    reasons = {
        "tuning": "No study of this data and these members",
        "gradcam": f"<code>make grad-cam report PARAMS={blended[0].params}</code> shows what the network looks at",
        "samples": "No augmented batch",
        "leaderboard": "No submission has a public score",
        "caveats": "test rows were not compared with training rows, because there are too few",
    }
    for key, reason in reasons.items():
        assert reason in section_of(page, key)


def test_names_from_users_are_escaped_and_the_page_needs_no_other_files(blended) -> None:
    page = blended[0].page
    assert "<b>rose" not in page and "<i>last" not in page and "&lt;b&gt;rose" in page
    assert set(re.findall(r'src="([^,]{15})', page)) == {"data:image/png;"}
    assert "http://" not in page and "https://" not in page and page.count("<script") == 1 and "<link" not in page
    assert str(blended[0].folder) not in page.replace(str(blended[0].params), "")


def test_the_page_shows_errors_as_pictures_problems_of_the_data_and_curves_of_scored_epochs(blended) -> None:
    page = blended[0].page
    wrong, errors = int(re.findall(r"Misclassified rows: (\d+) of 45", page)[0]), section_of(page, "errors")
    assert 0 < errors.count("<figure>") == min(wrong, 32) == errors.count('<img src="data:image/png;base64,')
    assert "LEAK: 1 of 9 test images are also labelled images: worth at most 0.1111 of accuracy" in page
    assert "1 photo has two labels or more" in page and "Not found: unreadable images." in page
    assert re.search(r"\d+ pairs of the same photo, 3 of them byte for byte", page)
    lines = re.findall(r'<g class="curve">.*?<path d="([^"]+)"', page, re.DOTALL)
    points = [len(re.findall("[ML]", line)) for line in lines]
    assert sorted(set(points)) == [2, 3]  # held-out: not scored in the first epoch; loss: all three
    assert "0.8125 to 0.8125" in page and "123 s" in page  # three fold models of 41 s
    costs, _, _ = section_of(page, "costs").partition("<p")
    assert re.search(r"prepare</th><td>1</td><td>\d+ s</td><td>\d\.\d\d GB", costs) and "tune" not in costs


def test_every_gain_names_its_baseline_and_that_baseline_has_a_score(blended) -> None:
    (table,) = re.findall(r"<caption>The blend .*?</table>", blended[0].page, re.DOTALL)
    assert "equal weights of all members, argmax" in table and "the best member: " in table
    assert len(re.findall(r"<td>\d\.\d{4} ± \d\.\d{4}</td>", table)) == 6  # baseline and blend, three times
    best = json.loads((blended[0].blend / "scores.json").read_text())["best_members"]
    assert sorted(fold for folds in best.values() for fold in folds) == [0, 1, 2]


def test_before_training_the_page_describes_the_data(prepared_workspace: ReportWorkspace, tmp_path: Path) -> None:
    workspace = ReportWorkspace(prepared_workspace.copy_to(tmp_path).folder)
    missing = f"photos has no blend by {workspace.params}: this stage needs the results of `make predict`"
    assert missing in workspace.refused("label_issues")
    assert "report.html" in workspace.do("report")
    keys = ["next", "tuning", "gradcam", "samples", "data", "caveats", "runs", "leaderboard", "costs", "made"]
    assert SECTION.findall(workspace.page) == keys
    assert "No run yet" in section_of(workspace.page, "runs") and "none yet" in workspace.page
    assert "No submission yet" in section_of(workspace.page, "leaderboard")


def test_a_blend_of_other_parameters_and_predictions_is_reported_and_missing_pictures_are_decoded(
    workspace, blended
) -> None:
    params = load_params(workspace.params)
    run = run_of(workspace.work, load_prepared(workspace.work / "data"), params, "wide")
    views_manifest = fold_views(run, params, 1).manifest
    oof, test_predictions = (ViewPredictions.load(views_manifest.with_name(name)) for name in ("oof.npz", "test.npz"))
    write_views(workspace, run, 1, ViewPredictions(oof.ids, oof.views, oof.probs[:, :, [1, 2, 0]]), test_predictions)
    shutil.rmtree(workspace.work / "cache")
    output = workspace.do("report", sets="blend.rounds=9")
    assert "The blend was made with other parameters (blend.rounds: 3 -&gt; 9)" in workspace.page
    assert "blend.rounds: 3 -> 9" in output and "The blend has other fold models or predictions of wide" in output
    assert "<img" in workspace.page and "No pictures" not in workspace.page  # decoded from the records
    label, time = "(of the current parameters, not of the blend)", "on this machine; the longest part"
    labelled = [key for key in SECTION.findall(workspace.page) if f"{label}</h2>" in section_of(workspace.page, key)]
    assert labelled == ["members", "tuning", "costs"] and time not in workspace.page  # of both, and so of neither
    assert label not in blended[0].page and time in blended[0].page
    shutil.rmtree(workspace.work / "data" / "records")
    workspace.do("report", sets="blend.rounds=9")
    assert "<figure>" in workspace.page and "<img" not in workspace.page and "No pictures: neither" in workspace.page


def test_a_blend_of_other_data_is_shown_with_a_warning_and_after_an_error_the_previous_page_is_kept(workspace) -> None:
    described = workspace.work / "data" / "competition.json"
    text = described.read_text()
    described.write_text(text.replace("aster", "dahlia"))
    assert "The blend is of other data than those that are here now" in workspace.do("report")
    keys = SECTION.findall(workspace.page)
    assert "blend" in keys and not {"classes", "map", "calibration", "errors"} & set(keys)
    before = workspace.page
    described.write_text(text)
    (workspace.blend / "honest_oof.npz").write_bytes(b"cut")
    assert "not a readable .npz" in workspace.refused("report")
    assert workspace.page == before and not list(workspace.work.glob(".report*"))


def test_runs_and_kaggle_scores_are_listed_and_scores_of_another_competition_are_in_no_table(workspace) -> None:
    ledger_file = workspace.submissions / "ledger.jsonl"
    (entry,) = ledger.read(ledger_file).entries
    ledger.append(ledger_file, ledger.Event(entry.digest, "scored", "7", 0.81234, 0.79876, slug="roses"))
    params, prepared = load_params(workspace.params), load_prepared(workspace.work / "data")
    earlier = load_params(workspace.params, parse_overrides("train.epochs=1"))
    for of, began in ((earlier, "2026-01-01T00:00:00"), (params, "2026-02-01T00:00:00")):
        run = run_of(workspace.work, prepared, of, "slim")
        write_run_file(run, ())
        write_json(run.folder / "run.json", json.loads((run.folder / "run.json").read_text()) | {"created": began})
    text = workspace.params.read_text()
    for slug, is_shown in (("https://www.kaggle.com/competitions/roses", True), ("tulips", False)):
        workspace.params.write_text(text.replace("adapter:", f'slug: "{slug}", adapter:'))
        workspace.do("report")
        for shown in ("<b>0.81234</b>", "<b>0.79876</b>", "public leaderboard"):
            assert (shown in workspace.page) == is_shown
        runs = section_of(workspace.page, "runs")
        assert f"{entry.file[:8]}{' (scored)' if is_shown else ''}<" in runs
        assert runs.index("2026-02-01") < runs.index("2026-01-01") and "epochs: 1 -&gt; 3" in runs


def test_results_of_optional_verbs_have_their_sections(workspace: ReportWorkspace) -> None:
    result = PreflightResult("train", 64, "too_big", 20 * 2**30, 16 * 2**30, remedy="lower train.batch").__dict__
    changes = ["slim train: needs 1.3 times what is there (params.yaml line 9: train.batch)"]
    (workspace.work / "preflight").mkdir()
    preflight_results = {
        "topology": "v5e-8",
        "backend": "jax",
        "members": {"slim": {"train": result}},
        "changes": changes,
    }
    (workspace.work / "preflight" / "v5e-8.json").write_text(json.dumps(preflight_results))
    params, prepared = load_params(workspace.params), load_prepared(workspace.work / "data")
    for name, trained_as in (("wide", "wide"), ("slim", "wide")):
        library = LibraryWorkspace(workspace.work, params, loaded=prepared)
        study = seed_study_path(library, name, params.members[trained_as])
        study.parent.mkdir(parents=True, exist_ok=True)
        study.write_text(json.dumps({"spread": 0.0123, "scores": [0.8, 0.82, 0.81]}))
    workspace.do("list_blends")
    depends = tuning_dependencies(LibraryWorkspace(Path(), params, loaded=prepared), "slim")
    best = tuning_result_path(workspace.work, "slim", depends)
    best.parent.mkdir(parents=True)
    values = {"learning_rate": 0.00123456}
    tuned = {"study": "slim", "trials": 3, "pruned": 1, "mean_share": 0.5, "own_values": {}, "tried": {}}
    best.write_text(json.dumps({**tuned, "values": values, "comparison": None, "folds": [0]}))
    write_manifest(best.with_name("manifest.json"), depends, [best], {"seconds": 75.0, "peak_memory": 2e9}, {})
    workspace.do("report")
    assert '<th scope="row" class="word">tune slim</th><td>1</td><td>75 s</td><td>2.00 GB</td>' in workspace.page
    for text in ("DOES NOT FIT", "20.00 GiB", changes[0], "bagged", "learning_rate 0.00123"):
        assert text in workspace.page
    assert (
        workspace.page.count("<td>0.0123</td>") == 1 and "slim: its seed study is of other parameters" in workspace.page
    )


@pytest.mark.skipif(executable() is None, reason="no browser is installed")
def test_the_page_of_a_competition_opens_in_a_browser_at_both_widths(blended, tmp_path: Path) -> None:
    workspace, _ = blended
    browser = Browser(str(executable()), tmp_path / "profile")
    try:
        for width in (1280, 420):
            browser.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
            )
            browser.call("Page.navigate", url=(workspace.work / "report.html").as_uri())
            browser.wait_for("document.documentElement?.dataset?.ready === 'yes'")
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            sections = "[...document.querySelectorAll('section')].filter(s => s.getBoundingClientRect().height > 20).map(s => s.id)"
            assert browser.evaluate(sections) == SECTION.findall(workspace.page)
            linked = "[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))"
            assert browser.evaluate(linked) == browser.evaluate(sections)
            broken = "[...document.images].filter(i => i.src && !(i.complete && i.naturalWidth)).length"
            browser.wait_for(f"{broken} === 0")
        assert browser.problems() == []
        assert {url.partition(":")[0] for url in browser.requested()} <= {"file", "data", "about"}
    finally:
        browser.close()


def test_scores_of_rows_that_chose_hyperparameters_are_marked_wherever_they_are_shown(workspace) -> None:
    own = "alpha: 0.25, weights: none"
    workspace.params.write_text(workspace.params.read_text().replace(own, f"{own}, tuned_folds: [0]"))
    write_fold_models(workspace)
    workspace.do("blend")
    workspace.do("report")
    members, runs = section_of(workspace.page, "members"), section_of(workspace.page, "runs")
    assert '<th scope="col">mean of folds 1, 2</th>' in members
    assert ">slim</th><td>0.8125 †</td><td>0.8125</td>" in members and ">wide</th><td>0.8125</td>" in members
    assert runs.count("<td>0.8125 †</td>") == 1 and runs.count("<td>0.8125</td>") == 2  # of earlier runs
    assert "those of fold 0 chose hyperparameters and are left out" in section_of(workspace.page, "overview")
    assert "features of its network" not in members + runs  # no member has a head
    for command in ("make adopt", "make train", "make tune", "make submit"):
        assert (
            f"<code>{command} PARAMS={workspace.params}" in workspace.page and f"<code>{command}<" not in workspace.page
        )
    sources = " ".join(re.findall('<span class="sources">(.*?)</span>', workspace.page))
    assert sources.count("make ") == sources.count(f" PARAMS={workspace.params}") > 10
    listed = workspace.do("runs")
    assert "0.8125 †" in listed and "† rows that chose the run's hyperparameters" in listed

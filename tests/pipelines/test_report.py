"""make report on a small real world: its own images and tables, invented predictions, the real stages around them."""

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from stages import Workspace
from world import ROOT

from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_path,
    fold_views_path,
    views_dependencies,
)
from competition.artifacts.ensemble_inputs import seed_study_digest, seed_study_path
from competition.artifacts.manifest import write_manifest
from competition.artifacts.runs import Run, run_of
from competition.artifacts.studies import tuning_dependencies, tuning_result_path
from competition.config.params_file import load_params
from competition.data.cache import cache_file
from competition.data.prepared import load_prepared
from competition.ensemble.predictions import ViewPredictions
from competition.preflight.answers import PreflightResult
from competition.submission import ledger

NAMES = ("<b>rose", 'tulip & "co"', "aster")
EACH, FOLDS, VIEWS = 15, 3, ("identity", "shift_up")
PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: garden, adapter: folder, source: SOURCE}}
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


class Garden(Workspace):
    @property
    def work(self) -> Path:
        return self.folder / "work" / "garden"

    @property
    def page(self) -> str:
        return (self.work / "report.html").read_text(encoding="utf-8")


def photo(number: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (12, 12, 3), np.uint8)
    Image.fromarray(pixels).resize((48, 48)).save(out, "PNG")
    return out.getvalue()


def plant(source: Path) -> None:
    """Photos of three classes; one is there twice, one under two labels, one among the test images as well."""
    names = [f"i{n:02}" for n in range(EACH * len(NAMES) - 1)] + ["<i>last"]
    photos = {name: photo(n) for n, name in enumerate(names)}
    photos["i03"], photos["i20"] = photos["i00"], photos["i01"]  # of one class; of two
    tests = {f"t{n}": photo(900 + n) for n in range(8)} | {"t8": photos["i05"]}
    source.mkdir()
    for name, data in (photos | tests).items():
        (source / f"{name}.png").write_bytes(data)
    quoted = ['"' + name.replace('"', '""') + '"' for name in NAMES]
    rows = [f"{name},{quoted[n // EACH]}" for n, name in enumerate(names)]
    (source / "train.csv").write_text("\n".join(["id,label", *rows]) + "\n")
    (source / "test.csv").write_text("\n".join(["id", *tests]) + "\n")
    (source / "sample_submission.csv").write_text("\n".join(["id,label", *(f"{t},{quoted[0]}" for t in tests)]) + "\n")


def invent(garden: Garden) -> None:
    """Fold models and predictions as `make train predict` would leave them: mostly right, some surely wrong."""
    params, prepared = load_params(garden.params), load_prepared(garden.work / "data")
    train, test = prepared.part("train"), prepared.part("test")
    for seed, name in enumerate(params.members):
        run = run_of(garden.work, prepared, params, name)
        rng = np.random.default_rng(seed)
        for fold in range(FOLDS):
            held_out = train[train["fold"] == fold]
            oof = invented_predictions(rng, held_out["id"].to_numpy(str), held_out["label"].to_numpy())
            test_predictions = invented_predictions(
                rng, test["id"].to_numpy(str), rng.integers(0, len(NAMES), len(test))
            )
            manifest = fold_model_path(run, fold)
            manifest.parent.mkdir(parents=True)
            np.savez(manifest.with_name("weights.npz"), w=np.full(1000, seed + fold, np.float32))
            manifest.with_name("history.csv").write_text(
                "epoch,loss,learning_rate,held_out\n1,1.5,0.004,nan\n2,0.9,0.002,0.61\n3,0.7,0.0,0.8125\n"
            )
            oof.save(manifest.with_name("oof.npz"))
            files = [manifest.with_name(file) for file in ("weights.npz", "history.csv", "oof.npz")]
            result = {"held_out": 0.8125, "epoch": 3, "held_out_last": 0.8125, "loss": 0.7, "seconds": 41.0}
            write_manifest(manifest, fold_model_dependencies(run, fold), files, result, {})
            seal_views(garden, run, fold, oof, test_predictions)


def fill_cache(garden: Garden) -> None:
    """Decoded training images on disk, as `make train` would leave them."""
    prepared = load_prepared(garden.work / "data")
    ids, fit = prepared.part("train")["id"].to_numpy(str), load_params(garden.params).prepare.fit
    file = cache_file(garden.work / "cache", prepared.digest, ids, 16, fit)
    file.parent.mkdir(exist_ok=True)
    np.save(file, np.random.default_rng(0).integers(0, 256, (len(ids), 16, 16, 3), np.uint8))


def seal_views(garden: Garden, run: Run, fold: int, oof: ViewPredictions, test_predictions: ViewPredictions) -> None:
    params = load_params(garden.params)
    manifest = fold_views_path(run, params, fold)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    oof.save(manifest.with_name("oof.npz"))
    test_predictions.save(manifest.with_name("test.npz"))
    files = [manifest.with_name("oof.npz"), manifest.with_name("test.npz")]
    depends = views_dependencies(run, params, fold)
    write_manifest(manifest, depends, files, {"seconds": 2.0}, {})


def invented_predictions(rng: np.random.Generator, ids: np.ndarray, labels: np.ndarray) -> ViewPredictions:
    """A fifth of the rows surely another class, the same in all views."""
    given = np.where(rng.random(len(ids)) < 0.2, (labels + 1) % len(NAMES), labels)
    scores = rng.random((len(ids), len(VIEWS), len(NAMES))) * 0.3
    scores[np.arange(len(ids)), :, given] += 2
    return ViewPredictions(ids, VIEWS, (scores / scores.sum(-1, keepdims=True)).astype(np.float16))


@pytest.fixture(scope="session")
def prepared_garden(tmp_path_factory: pytest.TempPathFactory) -> Garden:
    garden = Garden(tmp_path_factory.mktemp("garden"))
    plant(garden.folder / "photos")
    garden.params.write_text(PARAMS.replace("SOURCE", str(garden.folder / "photos")))
    garden.do("download")
    garden.do("prepare")
    return garden


@pytest.fixture(scope="session")
def blended(prepared_garden: Garden, tmp_path_factory: pytest.TempPathFactory) -> tuple[Garden, str]:
    """(a garden with a report, output of blend). Read-only."""
    garden = Garden(prepared_garden.copy_to(tmp_path_factory.mktemp("blended")).folder)
    invent(garden)
    fill_cache(garden)
    output = garden.do("blend")
    garden.do("report")
    return garden, output


@pytest.fixture
def garden(blended: tuple[Garden, str], tmp_path: Path) -> Garden:
    return Garden(blended[0].copy_to(tmp_path).folder)


def test_the_page_has_the_figures_of_the_terminal(blended) -> None:
    garden, output = blended
    (honest,) = re.findall(r"honest +(\d\.\d{4} ± \d\.\d{4})", output)
    (chosen,) = re.findall(r"blend +(\d\.\d{4}) ", output)
    (band,) = re.findall(r"test rows: (\d\.\d{4} to \d\.\d{4})", output)
    assert f"<b>{honest}</b>" in garden.page and f"<b>{chosen}</b>" in garden.page and f"<b>{band}</b>" in garden.page
    for line in re.findall(r"over (?:equal weights|the best member) +(.+)", output):
        assert f"<td>{line}</td>" in garden.page
    for name, alone, worth in re.findall(r"^  (slim|wide) +(\d\.\d{4}) +([+-]\d\.\d{4})  ", output, re.M):
        assert f'<td class="word">{name}</td><td>{alone}</td><td>{worth}</td>' in garden.page


def test_every_section_that_has_a_source_is_there_and_no_other(blended) -> None:
    garden, _ = blended
    keys = re.findall(r'<section id="(\w+)">', garden.page)
    reached, data = ["blend", "views", "worth", "members", "classes", "calibration", "errors"], ["data", "caveats"]
    assert keys == [*reached, *data, "ledger", "made"]


def test_names_from_users_are_text_and_never_markup(blended) -> None:
    page = blended[0].page
    assert "<b>rose" not in page and "<i>last" not in page
    assert "&lt;b&gt;rose" in page


def test_the_page_stands_alone(blended) -> None:
    page = blended[0].page
    assert set(re.findall(r'src="([^,]{15})', page)) == {"data:image/png;"}
    assert "http://" not in page and "https://" not in page and "<script" not in page and "<link" not in page
    assert str(blended[0].folder) not in page.replace(str(blended[0].params), "")


def test_the_errors_are_shown_as_pictures_with_both_classes(blended) -> None:
    page = blended[0].page
    shown = page.count("<figure>")
    wrong = int(re.findall(r"(\d+) of 45 rows are misclassified", page)[0])
    assert 0 < shown == min(wrong, 32) == page.count('<img src="data:image/png;base64,')


def test_without_cached_images_the_errors_are_listed_without_pictures(garden: Garden) -> None:
    shutil.rmtree(garden.work / "cache")
    garden.do("report")
    assert "<figure>" in garden.page and "<img" not in garden.page
    assert "No pictures: the decoded training images are not on disk" in garden.page


def test_what_was_found_in_the_data_is_listed(blended) -> None:
    page = blended[0].page
    assert "LEAK: 1 of 9 test images are also labelled images: worth at most 0.1111 of accuracy" in page
    assert "1 photo has two labels or more" in page
    assert re.search(r"\d+ pairs of the same photo, 3 of them byte for byte", page)
    assert "Not found: unreadable images." in page


def test_training_curves_leave_out_unscored_epochs(blended) -> None:
    page = blended[0].page
    lines = re.findall(r'<g class="curve">.*?<path d="([^"]+)"', page, re.DOTALL)
    points = [len(re.findall("[ML]", line)) for line in lines]
    assert sorted(set(points)) == [2, 3]  # held-out: not looked at in the first epoch; loss: all three
    assert "0.8125 to 0.8125" in page and "123 s" in page  # three fold models of 41 s


def test_a_report_starts_no_heavy_package(garden: Garden) -> None:
    ran = garden.run("report", PYTHONPROFILEIMPORTTIME="1")
    assert ran.code == 0
    loaded = {line.rpartition("|")[2].strip() for line in ran.err.splitlines() if line.startswith("import time")}
    assert {"jinja2", "matplotlib"} <= loaded
    assert not loaded & {"tensorflow", "keras", "jax", "torch", "optuna", "sklearn"}


def test_before_any_training_the_page_tells_of_the_data(prepared_garden: Garden, tmp_path: Path) -> None:
    garden = Garden(prepared_garden.copy_to(tmp_path).folder)
    assert "report.html" in garden.do("report")
    assert re.findall(r'<section id="(\w+)">', garden.page) == ["data", "caveats", "made"]
    assert "none yet" in garden.page


def test_nothing_downloaded_names_the_command(tmp_path: Path) -> None:
    garden = Garden(tmp_path)
    garden.params.write_text(PARAMS.replace("SOURCE", str(tmp_path)))
    assert "`make download`" in garden.refused("report")


def test_a_blend_of_other_parameters_is_reported(garden: Garden) -> None:
    output = garden.do("report", sets="blend.rounds=9")
    assert "The blend was made with other parameters (blend.rounds: 3 -&gt; 9)" in garden.page
    assert "blend.rounds: 3 -> 9" in output
    assert "The blend was made" not in garden.do("report")


def test_a_member_predicted_after_the_blend_is_reported(garden: Garden) -> None:
    params = load_params(garden.params)
    run = run_of(garden.work, load_prepared(garden.work / "data"), params, "wide")
    one = fold_views_path(run, params, 1)
    oof, test_predictions = (ViewPredictions.load(one.with_name(name)) for name in ("oof.npz", "test.npz"))
    seal_views(garden, run, 1, ViewPredictions(oof.ids, oof.views, oof.probs[:, :, [1, 2, 0]]), test_predictions)
    assert "The blend has other fold models or predictions of wide" in garden.do("report")
    garden.do("blend")
    assert "other fold models" not in garden.do("report")


def test_a_blend_of_other_data_shows_its_scores_with_a_warning_and_no_rows(garden: Garden) -> None:
    described = garden.work / "data" / "competition.json"
    described.write_text(described.read_text().replace("aster", "dahlia"))
    assert "The blend is of other data than those that are here now" in garden.do("report")
    keys = re.findall(r'<section id="(\w+)">', garden.page)
    assert "blend" in keys and not {"classes", "calibration", "errors"} & set(keys)


def test_scores_from_kaggle_are_shown_with_the_expected_ones(garden: Garden) -> None:
    book = garden.submissions / "ledger.jsonl"
    (entry,) = ledger.read(book).entries
    ledger.append(book, ledger.Event(entry.digest, "scored", "7", 0.81234, 0.79876, "", "2026-01-02T03:04:05"))
    garden.do("report")
    assert "<b>0.81234</b>" in garden.page and "<b>0.79876</b>" in garden.page
    assert "public leaderboard" in garden.page and "scored" in garden.page


def test_results_of_optional_verbs_have_their_sections(garden: Garden) -> None:
    answer = PreflightResult("train", 64, "too_big", 20 * 2**30, 16 * 2**30, remedy="lower train.batch").__dict__
    changes = ["slim train: needs 1.3 times what is there (params.yaml line 9: train.batch)"]
    (garden.work / "preflight").mkdir()
    found = {"topology": "v5e-8", "backend": "jax", "members": {"slim": {"train": answer}}, "changes": changes}
    (garden.work / "preflight" / "v5e-8.json").write_text(json.dumps(found))
    params, prepared = load_params(garden.params), load_prepared(garden.work / "data")
    for name, seen_as in (("wide", "wide"), ("slim", "wide")):
        of = seed_study_digest(prepared, params, params.members[seen_as])
        study = seed_study_path(garden.work, name, of)
        study.parent.mkdir(parents=True, exist_ok=True)
        study.write_text(json.dumps({"of": of, "spread": 0.0123, "scores": [0.8, 0.82, 0.81]}))
    garden.do("table")
    depends = tuning_dependencies(prepared, params, "slim")
    best = tuning_result_path(garden.work, "slim", depends)
    best.parent.mkdir(parents=True)
    best.write_text(json.dumps({"values": {"learning_rate": 0.00123456}, "folds": []}))
    write_manifest(best.with_name("manifest.json"), depends, [best], {}, {})
    garden.do("report")
    for text in ("DOES NOT FIT", "20.00 GiB", changes[0], "coordinate", "learning_rate 0.001235"):
        assert text in garden.page
    assert garden.page.count("<td>0.0123</td>") == 1 and "slim: its seed study is of other parameters" in garden.page


def test_a_page_that_cannot_be_made_leaves_the_old_one(garden: Garden) -> None:
    before = garden.page
    (garden.blend / "honest_oof.npz").write_bytes(b"cut")
    assert "not a readable .npz" in garden.refused("report")
    assert garden.page == before
    assert not list(garden.work.glob(".report*"))

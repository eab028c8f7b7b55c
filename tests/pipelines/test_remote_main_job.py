"""`make download train predict submit`, and the same through `make kernel`, against a Kaggle on loopback and its real client."""

import base64
import csv
import hashlib
import io
import json
import shutil
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from stages import Workspace
from world import ROOT

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_kaggle.gcs import FakeGcs
from fake_kaggle.parts import SIGNATURE, Contest
from fake_kaggle.server import FakeKaggle

from competition.data.adapters import drawn
from competition.data.adapters.flowers import NAMES

PARAMS = f"""
extends: {ROOT}/params.yaml
competition: {{name: small, adapter: flowers, slug: flowers, image_size: 32}}
prepare: {{folds: 2}}
train: {{epochs: 1, batch: 100, steps_per_call: 5}}
members:
  slim: {{architecture: cnn, image_size: 16, alpha: 0.25, weights: none}}
predict: {{batch: 100, views: [identity]}}
policy: {{rounds: 1}}
blend: {{methods: [equal], rounds: 1, bags: 1}}
decision: {{rules: [argmax]}}
honest: {{resamples: 20}}
kaggle: {{tries: 3, first_wait: 0.05, longest_wait: 3.0, stall: 60.0, score_wait: 60.0, score_pause: 0.05}}
kernel: {{machine: "", devices: 1, internet: false, hours: 0.2, reserve: 0.01, pause: 0.1}}
"""
# Not in Kaggle's image, or not needed there: a kernel must do without.
NOT_ON_KAGGLE = ("jupytext", "pytest", "hypothesis", "xdist", "mypy", "ruff", "cleanlab", "kaggle", "kagglesdk")
FROM_TRAIN_ON = ("resolve", "tune", "train", "predict", "blend")


@dataclass
class World:
    """A Kaggle with one competition, and a place that talks to it."""

    kaggle: FakeKaggle
    place: Workspace
    home: Path
    heard: list[str] = field(default_factory=list)  # all that stages said

    def at(self, folder: Path) -> "World":
        return World(self.kaggle, self.place.copy_to(folder), self.home, self.heard)

    def run(self, stage: str, *arguments: str, sets: str = "", **more: str):
        around = self.kaggle.environment(self.home, VERBOSE="1", KAGGLE_TOKEN="junk", **more)
        ran = self.place.run(stage, *arguments, sets=sets, **around)
        self.heard.append(ran.out + ran.err)
        return ran

    def do(self, stage: str, *arguments: str, sets: str = "", **more: str) -> str:
        ran = self.run(stage, *arguments, sets=sets, **more)
        assert ran.code == 0, f"{stage}: {ran.out}\n{ran.err}"
        return ran.out

    def refused(self, stage: str, *arguments: str, sets: str = "", **more: str) -> str:
        ran = self.run(stage, *arguments, sets=sets, **more)
        assert ran.code == 1 and "goldfold: " in ran.err and "Traceback" not in ran.err, f"{ran.out}\n{ran.err}"
        return ran.err

    def ledger(self) -> list[dict]:
        return [json.loads(line) for line in (self.place.submissions / "ledger.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory):
    """The world after `make download`. Not to be changed."""
    folder = tmp_path_factory.mktemp("remote")
    drawn.flowers(folder / "raw", NAMES, 0.001, (32,), 42)
    shutil.move(folder / "raw" / "private" / "solution.csv", folder / "solution.csv")
    truth = {row["id"]: row["label"] for row in csv.DictReader((folder / "solution.csv").open())}

    def score(data: bytes) -> tuple[str, str, str, str]:
        told = {row["id"]: row["label"] for row in csv.DictReader(io.StringIO(data.decode()))}
        if told.keys() != truth.keys():
            return "ERROR", "", "", f"Submission must have {len(truth)} rows"
        return "COMPLETE", f"{sum(told[name] == truth[name] for name in truth) / len(truth):.5f}", "", ""

    files = {p.relative_to(folder / "raw").as_posix(): p for p in sorted((folder / "raw").rglob("*")) if p.is_file()}
    for name in ("server", "home", "place"):
        (folder / name).mkdir()
    (folder / "place" / "params.yaml").write_text(PARAMS)
    with FakeKaggle(folder / "server") as kaggle:
        kaggle.contests["flowers"] = Contest(
            {name: path.read_bytes() for name, path in files.items()}, daily=50, score=score
        )
        kaggle.hidden_modules = NOT_ON_KAGGLE
        world = World(kaggle, Workspace(folder / "place"), folder / "home")
        kaggle.contests["flowers"].entered = False
        assert "accept them at https://www.kaggle.com/competitions/flowers/rules" in world.refused("download")
        assert not (world.place.work / "raw.json").exists()
        kaggle.contests["flowers"].entered = True
        kaggle.faults["archive"] = ["cut"]
        said = world.do("download")
        assert "key from KAGGLE_USERNAME and KAGGLE_KEY" in said and "rules accepted; 50 submissions a day" in said
        world.do("prepare")
        yield world


@pytest.fixture(scope="module")
def submitted(downloaded, tmp_path_factory):
    """The world after `make download train predict submit`. Not to be changed."""
    world = downloaded.at(tmp_path_factory.mktemp("submitted"))
    for stage in FROM_TRAIN_ON:
        world.do(stage)
    world.first = world.do("submit")
    return world


@pytest.fixture
def world(submitted, tmp_path):
    """A copy, to be changed."""
    return submitted.at(tmp_path)


def test_what_came_is_what_kaggle_has_and_needs_no_network_again(downloaded) -> None:
    raw, files = downloaded.place.work / "raw", downloaded.kaggle.contests["flowers"].files
    assert {p.relative_to(raw).as_posix(): p.read_bytes() for p in raw.rglob("*") if p.is_file()} == files
    assert not (downloaded.place.work / "raw.archive").exists()  # or it would lie on the disk twice
    assert "download: current" in downloaded.place.do("download")  # with no Kaggle to ask


def test_from_download_to_a_scored_line_of_the_ledger(submitted) -> None:
    (made,) = [made for made in submitted.kaggle.submissions if made["slug"] == "flowers"][:1]
    entry, *events = submitted.ledger()
    assert [event["what"] for event in events] == ["sending", "submitted", "scored"]
    assert made["sha256"] == entry["digest"] and made["message"].endswith(f"goldfold {entry['digest'][:16]}")
    assert events[-1]["ref"] == str(made["ref"]) and events[-1]["public_score"] == float(made["final"][1])
    assert f"kaggle competitions submit flowers -f {submitted.place.submissions}/{entry['file']}" in submitted.first
    assert "50 submissions to flowers are left today" in submitted.first


def test_the_same_file_is_sent_again_only_when_asked_for(world) -> None:
    before = len(world.kaggle.submissions)
    assert "scored before as" in world.do("submit")
    assert len(world.kaggle.submissions) == before
    world.do("submit", "--again")
    assert len(world.kaggle.submissions) == before + 1


def test_nothing_is_sent_where_nothing_is_taken(world) -> None:
    contest, before = world.kaggle.contests["flowers"], len(world.kaggle.submissions)
    contest.closed = True
    try:
        assert "takes no submissions (any more)" in world.refused("submit", "--again")
        contest.closed, contest.daily = False, before
        assert "no submission to flowers is left today" in world.refused("submit", "--again")
    finally:
        contest.closed, contest.daily = False, 50
    assert len(world.kaggle.submissions) == before


def test_a_file_changed_by_hand_is_not_sent(world) -> None:
    (file,) = world.place.submissions.glob("*.csv")
    head, first, *rest = file.read_text().splitlines()
    file.write_text("\n".join([head, first.split(",")[0] + ",103", *rest]))
    before = len(world.kaggle.calls)
    assert "does not hold the predictions it was written with" in world.refused("submit", "--again")
    assert len(world.kaggle.calls) == before


def test_a_score_that_comes_late_is_found_by_the_table(world) -> None:
    world.kaggle.pending_polls = 10**9
    assert "has no score yet" in world.do("submit", "--again", sets="kaggle.score_wait=0")
    assert world.ledger()[-1]["what"] == "submitted"
    world.kaggle.pending_polls = 0
    said = world.do("submissions")
    assert world.ledger()[-1]["what"] == "scored"
    entry, public = world.ledger()[0], world.ledger()[-1]["public_score"]
    row = [line for line in said.splitlines() if line.startswith(entry["digest"][:12])][-1]  # one for each time
    assert f"{public:.5f}" in row and f"{public - entry['honest_score']:+.4f}" in row and row.endswith("scored")
    assert "left today" in said
    assert "could not read Kaggle's list: Kaggle does not accept" in world.do("submissions", KAGGLE_KEY="wrong")


def test_two_submissions_are_compared_row_by_row(world) -> None:
    (file,) = world.place.submissions.glob("*.csv")
    head, first, *rest = file.read_text().splitlines()
    name, label = first.split(",")
    other = str((int(label) + 1) % 104)
    (world.place.submissions / "other.csv").write_text("\n".join([head, f"{name},{other}", *rest]) + "\n")
    said = world.do("diff", "--a", file.stem[:6], "--b", "other")
    assert f"differs from {file.stem} in 1 of {len(rest) + 1} rows" in said
    assert f"{name}: {NAMES[int(label)]} -> {NAMES[int(other)]}" in said
    (table,) = (world.place.work / "diff").glob("*.csv")
    assert table.read_text() == f"id,a,b\n{name},{NAMES[int(label)]},{NAMES[int(other)]}\n"
    assert "'zz' names 0 submissions" in world.refused("diff", "--a", "zz", "--b", "other")


def test_the_kernel_does_the_same_work_for_all_folds(downloaded, submitted, tmp_path) -> None:
    world = downloaded.at(tmp_path)
    said = world.do("kernel")
    assert "19.0 h of TPU and 30.0 h of GPU are left" in said and "kernel: done after" in said
    assert world.place.weights() == submitted.place.weights()  # to the bit, from a clean folder on "another machine"
    loaded = world.run("predict", PYTHONPROFILEIMPORTTIME="1").err
    assert " tensorflow\n" not in loaded  # the predictions came with the fold models
    world.do("blend")
    assert world.place.submission() == submitted.place.submission()
    assert "kernel: current" in world.do("kernel")
    notebook = json.loads((world.place.work / "kernel" / "notebook" / "goldfold-small.ipynb").read_text())
    assert {cell["cell_type"] for cell in notebook["cells"]} == {"markdown", "code"}


def test_one_stale_fold_is_made_again_with_an_index_too_large_for_the_kernels_file(world) -> None:
    sets, old = "train.learning_rate=0.002", world.place.weights()
    pushes = world.kaggle.count("SaveKernel")
    world.kaggle.faults["GetKernelSessionStatus"] = ["403"]
    world.refused("kernel", "--fold", "1", "--inline", "100", sets=sets)
    carried = world.kaggle.datasets["ada/goldfold-small-carried"].keys()
    assert carried == {"goldfold-output.json", "work-small-kernel-index.pack"}
    (request,) = (run.request for run in world.kaggle.kernels["ada/goldfold-small"][-1:])
    assert request["datasetDataSources"] == ["ada/goldfold-small-carried"]
    said = world.do("kernel", "--fold", "1", sets=sets)  # followed later
    assert "kernel: resuming run" in said and world.kaggle.count("SaveKernel") == pushes + 1
    assert "prepare: groups and folds as in work/small/kernel/index/index.csv" in said
    new = world.place.weights()
    assert new["slim/fold0"] == old["slim/fold0"] and new["slim/fold1"] != old["slim/fold1"]
    assert "WARNING" not in said
    assert "train slim: fold 1 current" in world.do("train", "--fold", "1", sets=sets)


@pytest.fixture
def notebooks_only(downloaded):
    downloaded.kaggle.contests["flowers"].kernels_only = True
    yield
    downloaded.kaggle.contests["flowers"].kernels_only = False


def test_a_file_for_a_competition_of_notebooks_is_refused_with_the_parameter_to_set(world, notebooks_only) -> None:
    told = world.refused("submit", "--again")
    assert "set kaggle.submit to notebook, then `make kernel submit`; nothing was sent" in told
    assert "no kernel has made a submission yet" in world.refused("submit", sets="kaggle.submit=notebook")


def test_from_download_to_a_scored_line_through_a_notebook(downloaded, notebooks_only, tmp_path) -> None:
    world = downloaded.at(tmp_path)
    sets = "kaggle.submit=notebook train.learning_rate=0.003"
    said, version = world.do("kernel", sets=sets), len(world.kaggle.kernels["ada/goldfold-small"])
    assert f"made by version {version} of ada/goldfold-small; `make submit` submits it" in said
    assert world.kaggle.kernels["ada/goldfold-small"][-1].request["kernelType"] == "notebook"
    assert "kernel: current" in world.do("kernel", sets=sets)
    left = world.place.submission()
    said = world.do("submit", sets=sets)
    assert f"submit flowers -k ada/goldfold-small -v {version} -f submission.csv -m" in said
    made, (entry, *events) = world.kaggle.submissions[-1], world.ledger()
    assert [event["what"] for event in events] == ["sending", "submitted", "scored"]
    assert made["sha256"] == entry["digest"] == hashlib.sha256(left).hexdigest()
    assert events[-1]["ref"] == str(made["ref"]) and events[-1]["public_score"] == float(made["final"][1])
    world.do("blend", sets=sets)
    assert world.place.submission() == left  # blended here it is the same


def test_after_another_choice_a_notebook_blends_again_from_predictions_that_are_here(world, notebooks_only) -> None:
    sets, before = "kaggle.submit=notebook honest.resamples=21", world.place.submission()
    said = world.do("kernel", sets=sets)
    assert "2 folders of this machine are sent with it" in said and "pipelines.train" not in said
    run, sent = world.place.fold("slim", 0).parent.name, world.kaggle.datasets["ada/goldfold-small-carried"]
    names = {f"work-small-members-slim-{run}-fold{fold}.pack" for fold in (0, 1)}
    assert sent.keys() - {"goldfold-output.json"} == names
    for name in names:  # the predictions, and the manifest by which they are found; not the weights
        content = zipfile.ZipFile(io.BytesIO(sent[name])).namelist()
        assert "manifest.json" in content and "weights.npz" not in content
        assert {Path(path).name for path in content} == {"manifest.json", "oof.npz", "test.npz"}
    assert world.place.submission() == before  # of the same predictions, by the same rules
    assert world.ledger()[-1]["digest"] == hashlib.sha256(before).hexdigest()
    assert world.place.weights().keys() == {"slim/fold0", "slim/fold1"}


def test_another_submission_than_the_kernels_is_not_handed_in(world, notebooks_only) -> None:
    made = {"kernel": "ada/goldfold-small", "version": 1, "file": "submission.csv", "digest": "0" * 64, "asked": ""}
    (world.place.work / "kernel").mkdir()
    (world.place.work / "kernel" / "submission.json").write_text(json.dumps(made))
    told = world.refused("submit", "--again", sets="kaggle.submit=notebook")
    assert "version 1 of ada/goldfold-small made 000000000000, not " in told and "FILE=000000000000" in told


def test_external_images_below_the_projects_folder_go_with_the_kernel(downloaded, tmp_path) -> None:
    world = downloaded.at(tmp_path)
    for name in NAMES[:2]:
        (tmp_path / "more" / name).mkdir(parents=True)
        for number in range(3):
            pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "more" / name / f"{number}.png")
    sets = "'prepare.external={more: more}' members.slim.external=[more]"
    around = {"cwd": tmp_path, "PYTHONPATH": str(ROOT)}
    assert "6 external" in world.do("prepare", sets=sets, **around)
    said = world.do("kernel", "--fold", "0", sets=f"{sets} kaggle.submit=notebook", **around)
    assert "1 folders of this machine are sent with it" in said and "WARNING" not in said
    assert "no submission will be made: slim fold 1 would still be missing" in said
    assert "train slim: fold 0 current" in world.do("train", "--fold", "0", sets=sets, **around)


def test_a_kernel_without_its_accelerator_leaves_everything_as_it_was(world) -> None:
    before = world.place.weights()
    told = world.refused("kernel", sets="kernel.machine=TpuV5E8 train.epochs=2")
    assert "the kernel failed: expected 1 tpu devices, found:" in told
    assert world.place.weights() == before
    world.kaggle.quota["tpuQuota"] = (72000, 72000)
    try:
        told = world.refused("kernel", sets="kernel.machine=TpuV5E8 train.epochs=2")
    finally:
        world.kaggle.quota["tpuQuota"] = (3600, 72000)
    assert "no hours on TpuV5E8 are left this week" in told


def test_what_a_kernel_cannot_read_is_refused_before_it_is_pushed(world) -> None:
    pushes = world.kaggle.count("SaveKernel")
    told = world.refused("kernel", sets="members.slim.weights=/home/ada/mine.weights.h5")
    assert "members.slim.weights: /home/ada/mine.weights.h5 is outside the project" in told
    assert world.kaggle.count("SaveKernel") == pushes


def test_the_doctor_says_what_is_here_and_what_errors_mean(world) -> None:
    said = world.run("doctor").out
    for line in ("kaggle: key from KAGGLE_USERNAME", "Kaggle answers", "tensorflow sees 1 x CPU", "slim: 2 of 2 fold"):
        assert f"{line}" in said, said
    assert "Kaggle does not accept the credential" in world.run("doctor", KAGGLE_KEY="wrong").out
    assert "accept them on the Rules page" in world.do("doctor", "--explain=You must accept this competition's rules")
    assert "unknown error" in world.refused("doctor", "--explain=the cat sat on the keyboard")


def test_results_live_in_a_bucket_and_records_are_read_there(world, tmp_path_factory) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate of the stand-in for Google's storage, and is not here")
    sets, train_on_gs = "storage.bucket=gs://mine/x", "storage.bucket=gs://mine/x device.require=any"
    with FakeGcs(tmp_path_factory.mktemp("gcs")) as gcs:
        gcs.buckets["mine"] = {}
        around = gcs.environment()
        assert "`make bucket` copies the records there" in world.refused("resolve", sets=sets, **around)
        assert " results uploaded to gs://mine/x/small, 0 downloaded" in world.do("bucket", sets=sets, **around)
        assert "0 results uploaded" in world.do("bucket", sets=sets, **around)
        folder = tmp_path_factory.mktemp("fresh")
        (folder / "params.yaml").write_text(PARAMS)
        fresh = World(world.kaggle, Workspace(folder), world.home, world.heard)
        assert "0 results uploaded to gs://mine/x/small, 5 downloaded" in fresh.do("bucket", sets=sets, **around)
        assert not (fresh.place.work / "data" / "records").exists()
        assert fresh.place.weights() == world.place.weights()
        assert "resolve: gs://mine/x/small/data/records: the bucket named" in fresh.do("resolve", sets=sets, **around)
        old = {p.name: p.read_bytes() for p in fresh.place.work.glob("members/slim/*/fold0/views/*/*.npz")}
        read = sum("small%2Fdata%2Frecords%2Ffold" in call for call in gcs.calls)
        fresh.do("predict", "--force", sets=train_on_gs, **around)
        assert sum("small%2Fdata%2Frecords%2Ffold" in call for call in gcs.calls) > read
        assert {p.name: p.read_bytes() for p in fresh.place.work.glob("members/slim/*/fold0/views/*/*.npz")} == old
        fold = fresh.place.fold("slim", 0)
        name = f"x/small/{fold.relative_to(fresh.place.work).as_posix()}/weights.npz"
        gcs.buckets["mine"][name] = gcs.buckets["mine"][name][:-1] + b"?"
        shutil.rmtree(fold)
        assert "is not what its manifest says" in fresh.refused("bucket", sets=sets, **around)
        assert not (fold / "manifest.json").exists()


def test_no_planted_secret_is_anywhere(submitted) -> None:
    """Runs last: what every stage said here, and every file that any of them left."""
    kaggle = submitted.kaggle
    basic = base64.b64encode(f"{kaggle.username}:{kaggle.key}".encode()).decode()
    planted = [kaggle.key, kaggle.token, basic, SIGNATURE.split("=")[1]]
    assert sum(headers.get("Authorization") == f"Basic {basic}" for _, headers in kaggle.headers) > 10
    base = submitted.place.folder.parent
    # Other tests of this process plant secrets of their own in folders named after them.
    mine = [folder for folder in base.iterdir() if not folder.name.startswith("test_")]
    files = [p for one in mine for p in one.rglob("*") if p.is_file() and p.stat().st_size < 5_000_000]
    assert any(p.name == "ledger.jsonl" for p in files) and len(submitted.heard) > 10
    seen = "".join(submitted.heard) + "".join(p.read_text(errors="replace") for p in files)
    assert [secret for secret in planted if secret in seen or quote(secret) in seen] == []

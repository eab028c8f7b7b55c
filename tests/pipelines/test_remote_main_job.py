"""`make download train predict submit` and the same through `make kernel`, with the real client and a fake Kaggle server."""

import base64
import hashlib
import io
import re
import shutil
import zipfile
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import pytest
from builders import ROOT, files_below, params
from fake_kaggle.gcs import FakeGcs
from fake_kaggle.parts import SIGNATURE, Contest
from fake_kaggle.server import FakeKaggle
from light import KaggleSetup
from stages import MAIN_JOB, StageResult, new_workspace

from competition.config.errors import UserError
from competition.config.params import Params
from competition.config.params_file import BUDGET_FILE, load_params
from competition.files.manifest import write_json
from competition.kaggle.submit import KernelSubmission
from competition.preflight.pairs import KAGGLE, NEWEST, PAIRS, JaxPair
from competition.preflight.results import PreflightResult, request_of, store_result
from competition.preflight.topology import GIB, topology_named
from competition.prepare.adapters import drawn
from competition.prepare.adapters.flowers import CLASSES
from competition.workspace.workspace import Workspace
from pipelines.kaggle.kernel import check_preflight
from pipelines.terminal.job import Job
from pipelines.terminal.options import Options

PARAMS = f"""
extends: {ROOT}/tests/small.yaml
competition: {{adapter: flowers, slug: flowers, image_size: 32}}
train: {{epochs: 1, batch: 100, steps_per_call: 5}}
predict: {{batch: 100}}
blend: {{methods: [equal]}}
decision: {{rules: [argmax]}}
honest: {{resamples: 20}}
kaggle: {{max_attempts: 3, first_wait: 0.05, longest_wait: 3.0, stall: 60.0, score_wait: 60.0, score_pause: 0.05}}
kernel: {{machine: "", devices: 1, internet: false, hours: 0.2, reserve: 0.01, pause: 0.1}}
"""
# Packages that are absent from Kaggle's image or not needed there: kernels must run without them.
NOT_ON_KAGGLE = ("jupytext", "pytest", "hypothesis", "xdist", "mypy", "ruff", "cleanlab", "kaggle", "kagglesdk")


@dataclass
class KaggleWorkspace(KaggleSetup):
    outputs: list[str] = field(default_factory=list)  # stdout and stderr of all stages

    def copy_to(self, folder: Path) -> "KaggleWorkspace":
        return KaggleWorkspace(self.kaggle, self.workspace.copy_to(folder), self.home, self.outputs)

    def environment(self, **variables: str) -> dict[str, str]:
        return super().environment(VERBOSE="1", KAGGLE_TOKEN="junk", **variables)

    def run(self, stage: str, *arguments: str, sets: str = "", **variables: str) -> StageResult:
        result = super().run(stage, *arguments, sets=sets, **variables)
        self.outputs.append(result.out + result.err)
        return result


def archives(files: Iterable[str]) -> list[str]:
    """Names of the archives among the files that were sent with a kernel, without the digests of their folders."""
    return sorted(name.rpartition("-")[0] for name in files if name.endswith(".pack"))


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory):
    """The workspace after `make download`; tests must not change it."""
    folder = tmp_path_factory.mktemp("remote")
    drawn.flowers(folder / "raw", CLASSES, 0.001, (32,), 42)
    shutil.rmtree(folder / "raw" / "private")
    for name in ("server", "home"):
        (folder / name).mkdir()
    with FakeKaggle(folder / "server") as kaggle:
        contest = Contest(files_below(folder / "raw"), entered=False, daily=50)
        kaggle.contests["flowers"] = contest
        kaggle.hidden_modules, kaggle.forks_kernels = NOT_ON_KAGGLE, True
        remote = KaggleWorkspace(kaggle, new_workspace(folder / "workspace", PARAMS), folder / "home")
        assert "accept them at https://www.kaggle.com/competitions/flowers/rules" in remote.refused("download")
        assert not (remote.workspace.work / "raw.json").exists()
        contest.entered = True
        kaggle.faults["archive"] = ["cut"]
        output = remote.do("download")
        assert "key from KAGGLE_USERNAME and KAGGLE_KEY" in output and "rules accepted; 50 submissions a day" in output
        remote.do("prepare")
        yield remote


@pytest.fixture(scope="module")
def submitted(downloaded, tmp_path_factory):
    """The workspace after `make download train predict submit`; tests must not change it."""
    remote = downloaded.copy_to(tmp_path_factory.mktemp("submitted"))
    remote.outputs.append(remote.workspace.do_in_one_process(*MAIN_JOB[2:], **remote.environment()))
    remote.first = remote.do("submit")
    return remote


@pytest.fixture
def remote(submitted, tmp_path):
    """A copy of the submitted workspace, which tests may change."""
    return submitted.copy_to(tmp_path)


@pytest.fixture
def notebooks_only(downloaded, monkeypatch):
    monkeypatch.setattr(downloaded.kaggle.contests["flowers"], "kernels_only", True)


def test_download_to_submit_ends_with_a_scored_line_in_the_ledger(downloaded, submitted) -> None:
    assert files_below(downloaded.workspace.work / "raw") == downloaded.kaggle.contests["flowers"].files
    assert not (downloaded.workspace.work / "raw.archive").exists()  # not stored twice
    assert "download: current" in downloaded.workspace.here("download")  # without a Kaggle server
    submission, (entry, *events) = submitted.kaggle.submissions[0], submitted.workspace.ledger()
    assert [event["what"] for event in events] == ["sending", "submitted", "scored"]
    assert submission["sha256"] == entry["digest"]
    assert submission["message"].endswith(f"goldfold {entry['digest'][:16]}")
    assert events[-1]["ref"] == str(submission["ref"]) and events[-1]["public_score"] == float(submission["final"][1])
    assert f"kaggle competitions submit flowers -f {submitted.workspace.submissions}/{entry['file']}" in submitted.first
    assert "left today for flowers: 50 submissions" in submitted.first
    output = submitted.run("doctor").out
    assert "kaggle: key from KAGGLE_USERNAME" in output and "TPU: 19.0 h left of 20.0" in output
    assert "tensorflow sees 1 x CPU" in output and "slim: 2 of 2 fold" in output


def test_nothing_is_sent_that_kaggle_rejects_or_that_was_changed_by_hand(remote, notebooks_only, monkeypatch) -> None:
    before = len(remote.kaggle.submissions)
    words = "nothing was sent; set kaggle.submit to notebook, then `make kernel submit`"
    assert words in remote.refused("submit", "--again")
    made = KernelSubmission("ada/goldfold-small", 1, "submission.csv", "0" * 64, "")
    write_json(remote.workspace.work / "kernel" / "submission.json", made)
    error = remote.refused("submit", "--again", sets="kaggle.submit=notebook")
    assert "version 1 of ada/goldfold-small made 000000000000, not " in error and "FILE=000000000000" in error
    monkeypatch.setattr(remote.kaggle.contests["flowers"], "closed", True)
    assert "takes no submissions (any more)" in remote.refused("submit", "--again")
    (file,), calls = remote.workspace.submissions.glob("*.csv"), len(remote.kaggle.calls)
    head, first, *rest = file.read_text().splitlines()
    file.write_text("\n".join([head, first.split(",")[0] + ",103", *rest]))
    assert "does not hold the predictions it was written with" in remote.refused("submit", "--again")
    assert (len(remote.kaggle.submissions), len(remote.kaggle.calls)) == (before, calls)


def test_a_kernel_gives_the_same_weights_and_submission(downloaded, submitted, tmp_path, monkeypatch) -> None:
    remote = downloaded.copy_to(tmp_path)
    monkeypatch.setattr(remote.kaggle, "forks_kernels", False)
    output = remote.do("kernel")
    monkeypatch.undo()
    assert "kernel: done after" in output
    # Bit-identical, although trained in an empty folder on "another machine".
    assert remote.workspace.weights() == submitted.workspace.weights()
    # The predictions were imported with the fold models.
    assert "2 of 2 fold models current" in remote.workspace.do_in_one_process("predict", "blend")
    assert remote.workspace.submission() == submitted.workspace.submission()
    assert "kernel: current" in remote.workspace.here("kernel")
    # A session that ended between training and prediction: the next one predicts by the model that it gets.
    views = remote.workspace.views("slim", 1)
    predicted = (views / "oof.npz").read_bytes()
    shutil.rmtree(views)
    output = remote.do("kernel")
    assert "kernel: slim: folds 1" in output and "train slim: fold 1 current" in output
    assert (views / "oof.npz").read_bytes() == predicted
    assert remote.workspace.weights() == submitted.workspace.weights()


def test_a_kernel_spends_a_budget_and_its_parameter_file_predicts_here(downloaded, tmp_path) -> None:
    remote = downloaded.copy_to(tmp_path)
    assert "a session of the kernel has 0.19 hours" in remote.workspace.refused_here("kernel", hours=0.19)
    output = remote.do("kernel", "--hours", "0.1", sets="kernel.hours=0.21", GOLDFOLD_GOALS="kernel")
    assert "mobilenet-128, because the weights are not on this machine" in output  # of the portfolio that was sent
    assert "kernel | budget: without pretrained weights; slim is trained as it is stated" in output
    assert "next: make predict" in output and "HOURS=0.1" in output
    file = remote.workspace.work / BUDGET_FILE
    assert load_params(file).members == load_params(remote.workspace.params).members
    arguments = ("--hours", "0.1", "--set", "kernel.hours=0.21")
    stages = remote.workspace.do_in_one_process("predict", "blend", arguments=arguments)
    assert "2 of 2 fold models current" in stages and "submission:" in stages
    weights = remote.workspace.weights()
    # A second session goes on from what the first one made.
    output = remote.do("kernel", "--hours", "0.1", sets="kernel.hours=0.21", GOLDFOLD_GOALS="kernel")
    assert "kernel | train slim: folds 0, 1 current" in output and remote.workspace.weights() == weights


@pytest.mark.long
def test_one_stale_fold_is_trained_by_a_kernel_that_gets_the_index_as_a_dataset(remote) -> None:
    sets, pushes = "train.learning_rate=0.002", remote.kaggle.count("SaveKernel")
    old = {path: path.read_bytes() for path in remote.workspace.work.glob("members/*/*/fold*/weights.npz")}
    remote.kaggle.faults["GetKernelSessionStatus"] = ["403"]
    remote.refused("kernel", "--fold", "1", "--inline", "100", sets=sets)
    carried = remote.kaggle.datasets["ada/goldfold-small-carried"].keys()
    assert archives(carried) == ["work-small-kernel-index"]
    (request,) = (run.request for run in remote.kaggle.kernels["ada/goldfold-small"][-1:])
    assert request["datasetDataSources"] == ["ada/goldfold-small-carried"]
    output = remote.do("kernel", "--fold", "1", sets=sets)  # the next command follows the run
    assert "kernel: resuming run" in output and remote.kaggle.count("SaveKernel") == pushes + 1
    assert "prepare: groups and folds as in work/small/kernel/index/index.csv" in output
    (added,) = set(remote.workspace.work.glob("members/*/*/fold*/weights.npz")) - old.keys()
    assert added.match("slim/*/fold1/weights.npz") and added.read_bytes() not in old.values()
    assert {path: path.read_bytes() for path in old} == old
    assert "WARNING" not in output
    assert "train slim: fold 1 current" in remote.workspace.here("train", sets=sets, fold="1")


@pytest.mark.long
def test_a_notebook_submits_what_it_trained_and_later_what_is_here(downloaded, notebooks_only, tmp_path) -> None:
    remote = downloaded.copy_to(tmp_path)
    sets = "kaggle.submit=notebook train.learning_rate=0.003"
    output, version = remote.do("kernel", sets=sets), len(remote.kaggle.kernels["ada/goldfold-small"])
    assert f'made by version {version} of ada/goldfold-small; `make submit SET="{sets}"` submits it' in output
    assert remote.kaggle.kernels["ada/goldfold-small"][-1].request["kernelType"] == "notebook"
    submission_file = remote.workspace.submission()
    output = remote.do("submit", sets=sets)
    assert f"submit flowers -k ada/goldfold-small -v {version} -f submission.csv -m" in output
    submission, (entry, *events) = remote.kaggle.submissions[-1], remote.workspace.ledger()
    assert [event["what"] for event in events] == ["sending", "submitted", "scored"]
    assert submission["sha256"] == entry["digest"] == hashlib.sha256(submission_file).hexdigest()
    assert events[-1]["ref"] == str(submission["ref"]) and events[-1]["public_score"] == float(submission["final"][1])
    remote.workspace.here("blend", sets=sets)
    assert remote.workspace.submission() == submission_file  # the local blend is identical
    # After a changed setting a notebook blends the predictions of this machine again.
    output = remote.do("kernel", sets=f"{sets} honest.resamples=21")
    assert "2 folders of this machine are sent with it" in output and "pipelines train" not in output
    run, sent = remote.workspace.fold("slim", 0).parent.name, remote.kaggle.datasets["ada/goldfold-small-carried"]
    assert archives(sent) == [f"work-small-members-slim-{run}-fold{fold}" for fold in (0, 1)]
    # The predictions, and the manifest by which they are found; not the weights.
    for name in sent.keys() - {"goldfold-output.json"}:
        content = zipfile.ZipFile(io.BytesIO(sent[name])).namelist()
        assert {Path(path).name for path in content} == {"manifest.json", "oof.npz", "test.npz"}
    assert remote.workspace.submission() == submission_file  # of the same predictions, by the same rules
    assert remote.workspace.ledger()[-1]["digest"] == hashlib.sha256(submission_file).hexdigest()
    assert remote.workspace.weights().keys() == {"slim/fold0", "slim/fold1"}


@pytest.mark.long
def test_results_are_synchronised_with_a_bucket_and_records_are_read_from_it(remote, tmp_path_factory) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate of the fake Google Cloud Storage server, is not installed")
    sets, train_on_gs = "storage.bucket=gs://mine/x", "storage.bucket=gs://mine/x device.require=any"
    with FakeGcs(tmp_path_factory.mktemp("gcs")) as gcs:
        gcs.buckets["mine"] = {}
        environment = gcs.environment()
        assert "` copies the records there" in remote.refused("resolve", sets=sets, **environment)
        assert " results uploaded to gs://mine/x/small, 0 downloaded" in remote.do("bucket", sets=sets, **environment)
        workspace = new_workspace(tmp_path_factory.mktemp("fresh"), PARAMS)
        fresh = KaggleWorkspace(remote.kaggle, workspace, remote.home, remote.outputs)
        work = fresh.workspace.work
        output = fresh.do("bucket", sets=sets, **environment)
        assert "0 results uploaded to gs://mine/x/small, 5 downloaded" in output
        assert not (work / "data" / "records").exists() and fresh.workspace.weights() == remote.workspace.weights()
        output = fresh.do("resolve", sets=sets, **environment)
        assert "resolve: gs://mine/x/small/data/records: the bucket named" in output

        fold, views = fresh.workspace.fold("slim", 0), files_below(fresh.workspace.views("slim", 0))
        before = len(gcs.calls)
        fresh.do("predict", "--force", sets=train_on_gs, **environment)
        assert any("small%2Fdata%2Frecords%2Ffold" in call for call in gcs.calls[before:])
        after = files_below(fresh.workspace.views("slim", 0))
        assert [after[name] == views[name] for name in ("oof.npz", "test.npz")] == [True, True]
        name = f"x/small/{fold.relative_to(work).as_posix()}/weights.npz"
        gcs.buckets["mine"][name] = gcs.buckets["mine"][name][:-1] + b"?"
        shutil.rmtree(fold)
        assert "is not what its manifest says" in fresh.refused("bucket", sets=sets, **environment)
        assert not (fold / "manifest.json").exists()


def test_no_planted_secret_is_in_any_output_or_file(submitted) -> None:
    """Runs last: checks the output of every stage of this module and every file it wrote."""
    kaggle = submitted.kaggle
    basic = base64.b64encode(f"{kaggle.username}:{kaggle.key}".encode()).decode()
    planted = [kaggle.key, kaggle.token, basic, SIGNATURE.split("=")[1]]
    assert sum(headers.get("Authorization") == f"Basic {basic}" for _, headers in kaggle.headers) > 10
    # Other tests of this process plant their own secrets, in folders named after them.
    folders = [one for one in submitted.workspace.folder.parent.iterdir() if not one.name.startswith("test_")]
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    files = [path for path in found if path.stat().st_size < 5_000_000]
    assert any(path.name == "ledger.jsonl" for path in files) and len(submitted.outputs) > 10
    visible_text = "".join([*submitted.outputs, *(path.read_text(errors="replace") for path in files)])
    assert [secret for secret in planted if secret in visible_text or quote(secret) in visible_text] == []


def store(folder: Path, parameters: Params, verdict: str, pair: JaxPair) -> None:
    """Store the preflight verdict for training the member cnn on a v5e-8."""
    request = request_of(parameters.members["cnn"], parameters, topology_named("v5e-8"), "auto", 10)
    result = PreflightResult("train", 64, verdict, 20 * GIB, 16 * GIB)
    store_result(replace(request, pair=pair), result, folder / "preflight" / "answers")


@pytest.mark.parametrize(
    ("verdict", "compiled_with", "machine", "force", "used"),
    [
        ("too_big", KAGGLE, "TpuV5E8", False, None),  # refused
        ("too_big", KAGGLE, "TpuV5E8", True, KAGGLE),
        ("too_big", KAGGLE, "NvidiaTeslaT4", False, None),  # its own jax
        ("fits", KAGGLE, "TpuV5E8", False, KAGGLE),
        ("fits", NEWEST, "TpuV5E8", False, NEWEST),
        ("fits", None, "TpuV5E8", False, NEWEST),
    ],
)
def test_a_step_that_does_not_fit_is_refused_and_a_kernel_uses_the_verified_jax(
    tmp_path, verdict, compiled_with, machine, force, used
):
    # The kernel chooses its backend itself, whatever this machine uses.
    parameters, is_too_big = (
        params(f"kernel.machine={machine} device.backend=tensorflow"),
        verdict == "too_big" and machine == "TpuV5E8",
    )
    if compiled_with:
        store(tmp_path, parameters, verdict, compiled_with)
    job = Job(Workspace(tmp_path, parameters), Options(force=force), tmp_path)
    words = r"cnn train needs 20.00 GiB of memory .* 16.00 GiB .*: lower train.batch .*FORCE=1"
    with pytest.raises(UserError, match=words) if is_too_big and not force else nullcontext():
        pair = check_preflight(job, 10, {"cnn": parameters.members["cnn"]})
        assert pair == ({"jax": used.jax, "jaxlib": used.jax, "libtpu": used.libtpu} if used else {})
    assert any("WARNING cnn train needs 20.00 GiB" in line for line in job.echoed) == is_too_big


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_pair_is_what_its_requirements_pin(pair: JaxPair) -> None:
    text = (ROOT / pair.requirements).read_text(encoding="utf-8")
    packages = {r"^\W*(?:preflight = \[\")?jax": pair.jax, "jaxlib": pair.jax, "libtpu": pair.libtpu}
    for package, version in packages.items():
        assert re.findall(rf"{package}==([\d.]+)", text, re.M) == [version]

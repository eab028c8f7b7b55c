import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_kaggle.parts import Contest
from fake_kaggle.server import FakeKaggle
from fake_kaggle.world import FILES, QUICK

from competition.artifacts.manifest import files_intact, read_manifest, write_manifest
from competition.config.errors import UserError
from competition.kaggle.client import Client, KaggleError
from competition.kernels import api as kernels
from competition.kernels import packing
from competition.kernels import results as kernel_results
from competition.kernels.api import Kernel
from competition.kernels.kernel_script import restore
from competition.kernels.packing import Plan

# A project in small: "trains" the folds it is told to, from what the competition holds, sealed by the real manifests.
TRAIN = """
import pathlib, sys, time
from competition.artifacts.manifest import write_manifest
data, folds = pathlib.Path(sys.argv[1]), sys.argv[2:]
for fold in folds:
    folder = pathlib.Path("work/flowers/members/cnn/0123456789ab") / f"fold{fold}"
    if (folder / "manifest.json").exists():
        print(f"fold {fold}: current", flush=True)
        continue
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.npz").write_bytes((data / "train/01.tfrec").read_bytes()[:1000] + fold.encode())
    if fold == "9":
        print("fold 9: takes for ever", flush=True)
        time.sleep(600)
    if fold == "8":
        raise SystemExit("fold 8: broken")
    write_manifest(folder / "manifest.json", {"fold": fold}, [folder / "weights.npz"], {}, {})
    print(f"fold {fold}: trained", flush=True)
"""
COLLECT = ("work/*/members/*/*/fold*",)
KERNEL = Kernel("ada", "goldfold-flowers", "", internet=False, competition="flowers", datasets=(), seconds=600)


def project():
    root = Path(__file__).parents[2]
    files = packing.project_files(root, ["competition/__init__.py", "competition/artifacts/manifest.py"])
    return {**files, "train.py": TRAIN.encode()}


def plan(*folds, run="run-1", seconds=60, **changes):
    told = {
        "run": run,
        "commands": (("train.py", "{input:sample_submission.csv}", *folds),),
        "collect": COLLECT,
        "leave": {},
        "needs": {},
        "environment": {},
        "accelerator": "",
        "devices": 1,
        "seconds": seconds,
        "grace": 1,
    }
    return Plan(**{**told, **changes})


def go(client, told, kernel=KERNEL):
    pushed = kernels.push(client, kernel, packing.pack(project(), told))
    log = []
    return pushed, kernels.follow(client, pushed, log.append, 60, 0.1), "".join(log)


def bring(client, told, pushed, work, folder):
    return kernel_results.merge(kernel_results.pull(client, pushed, told.run, folder), work, COLLECT, 200)


def carry(root, folder):
    found = sorted(root.glob(COLLECT[0]))
    return packing.carry({unit.relative_to(root).as_posix(): packing.whole_folder(unit) for unit in found}, folder)


def folds(work):
    found = sorted((work / "work/flowers/members/cnn").glob("*/fold*/manifest.json"))
    return [path.parent.name for path in found if files_intact(path, read_manifest(path))]


def test_results_of_a_kernel_are_imported_as_if_trained_locally(kaggle, client, tmp_path):
    told = plan("0", "1")
    pushed, ended, log = go(client, told)
    assert (pushed.owner, pushed.slug, pushed.version, ended.status) == ("ada", "goldfold-flowers", 1, "COMPLETE")
    assert [log.count(f"fold {n}: trained") for n in "01"] == [1, 1]  # nothing is told twice
    merged = bring(client, told, pushed, tmp_path / "here", tmp_path / "pulled")
    assert merged.taken == (
        "work/flowers/members/cnn/0123456789ab/fold0",
        "work/flowers/members/cnn/0123456789ab/fold1",
    )
    assert folds(tmp_path / "here") == ["fold0", "fold1"]
    request = kaggle.kernels["ada/goldfold-flowers"][0].request
    assert (request["isPrivate"], request["competitionDataSources"]) == (True, ["flowers"])
    assert "dockerImage" not in request


def test_one_fold_is_added_to_the_complete_local_folds(kaggle, client, tmp_path):
    here = tmp_path / "here" / "work/flowers/members/cnn/0123456789ab/fold0"
    here.mkdir(parents=True)
    (here / "weights.npz").write_bytes(b"mine")
    write_manifest(here / "manifest.json", {"fold": "0"}, [here / "weights.npz"], {}, {})
    told = plan("0", "2")
    merged = bring(client, told, go(client, told)[0], tmp_path / "here", tmp_path / "pulled")
    assert (merged.taken, merged.kept) == (
        ("work/flowers/members/cnn/0123456789ab/fold2",),
        ("work/flowers/members/cnn/0123456789ab/fold0",),
    )
    assert (here / "weights.npz").read_bytes() == b"mine"


def test_training_stopped_by_the_time_limit_is_resumed(kaggle, client, tmp_path):
    told = plan("0", "9", seconds=4)
    pushed, ended, _ = go(client, told)
    output = kernel_results.pull(client, pushed, told.run, tmp_path / "pulled")
    assert (ended.status, output.status) == ("COMPLETE", "cut")
    merged = kernel_results.merge(output, tmp_path / "here", COLLECT, 200)
    assert (merged.taken, merged.partial) == (
        ("work/flowers/members/cnn/0123456789ab/fold0",),
        ("work/flowers/members/cnn/0123456789ab/fold9",),
    )
    packed = carry(tmp_path / "here", tmp_path / "carried")
    kernels.share(client, "ada/goldfold-carried", packed, "fold 0", 20)
    again = plan("0", "1", run="run-2")
    on = Kernel(**{**KERNEL.__dict__, "datasets": ("ada/goldfold-carried",)})
    pushed, _, log = go(client, again, on)
    assert "fold 0: current" in log
    assert "fold 1: trained" in log
    bring(client, again, pushed, tmp_path / "here", tmp_path / "pulled")
    assert folds(tmp_path / "here") == ["fold0", "fold1"]


def test_a_failed_command_is_an_error_that_keeps_finished_results(kaggle, client, tmp_path):
    told = plan("0", "8", "1")
    pushed, ended, log = go(client, told)
    assert ended.status == "ERROR"
    assert "fold 8: broken" in log
    output = kernel_results.pull(client, pushed, told.run, tmp_path / "pulled")
    assert (output.status, output.problem.endswith("failed, exit code 1")) == ("failed", True)
    assert kernel_results.merge(output, tmp_path / "here", COLLECT, 200).taken == (
        "work/flowers/members/cnn/0123456789ab/fold0",
    )


def test_a_kernel_without_its_accelerator_says_so_and_trains_nothing(kaggle, client, tmp_path):
    kaggle.hidden_modules = ("jax",)
    told = plan("0", accelerator="tpu", devices=8)
    pushed, ended, log = go(client, told)
    assert ended.status == "ERROR"
    assert "expected 8 tpu devices, found: ModuleNotFoundError" in log
    assert kernel_results.pull(client, pushed, told.run, tmp_path / "pulled").units == ()


def test_a_module_that_the_image_lacks_comes_from_attached_wheels(kaggle, client, tmp_path):
    wheel = tmp_path / "tiny_module-1.0-py3-none-any.whl"
    build_wheel(wheel)
    kernels.share(client, "ada/wheels-of-goldfold", [wheel], "wheels", 20)
    kaggle.kernel_environment = {"PIP_TARGET": str(tmp_path / "site"), "PIP_NO_INDEX": "1"}
    told = plan("0", needs={"tiny_module": "tiny-module==1.0"})
    text = packing.pack(project(), told)
    # The stand-in's kernels share our interpreter, where nothing may be installed: PIP_TARGET is their site-packages.
    text = text.replace(
        "importlib.invalidate_caches()", f"sys.path.append({str(tmp_path / 'site')!r}); importlib.invalidate_caches()"
    )
    on = Kernel(**{**KERNEL.__dict__, "datasets": ("ada/wheels-of-goldfold",)})
    pushed = kernels.push(client, on, text)
    ended = kernels.follow(client, pushed, lambda text: None, 60, 0.1)
    assert ended.status == "COMPLETE", kaggle.kernels["ada/goldfold-flowers"][-1].log


def build_wheel(path):
    import zipfile

    with zipfile.ZipFile(path, "w") as wheel:
        info = "tiny_module-1.0.dist-info"
        wheel.writestr("tiny_module.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-module\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_a_module_that_cannot_be_had_is_named(kaggle, client):
    kaggle.kernel_environment = {"PIP_NO_INDEX": "1"}
    _, ended, log = go(client, plan("0", needs={"no_such_module": "no-such-module"}))
    assert ended.status == "ERROR"
    assert "no_such_module cannot be imported" in log


def test_a_source_kaggle_would_drop_is_refused(kaggle, client):
    kernel = Kernel(**{**KERNEL.__dict__, "datasets": ("ada/absent",)})
    with pytest.raises(
        KaggleError, match="Kaggle would run ada/goldfold-flowers without its dataset sources ada/absent"
    ):
        kernels.push(client, kernel, packing.pack(project(), plan("0")))


def test_kaggles_refusal_of_a_push_is_passed_on(kaggle, client, monkeypatch):
    quota = {"error": "Maximum batch TPU session count of 1 reached."}
    monkeypatch.setattr(kaggle, "save_kernel", lambda ask: quota)
    with pytest.raises(KaggleError, match="rejected the kernel ada/goldfold-flowers: Maximum batch TPU session count"):
        kernels.push(client, KERNEL, packing.pack(project(), plan("0")))


def test_a_dataset_is_waited_for_until_kernels_can_read_it(kaggle, client, tmp_path):
    (tmp_path / "a.whl").write_bytes(b"1")
    kaggle.dataset_polls = 3
    kernels.share(client, "ada/wheels-of-goldfold", [tmp_path / "a.whl"], "wheels", 20)
    assert kaggle.dataset_polls == -1
    assert kaggle.datasets["ada/wheels-of-goldfold"]["a.whl"] == b"1"
    kaggle.dataset_polls = 10**9
    with pytest.raises(KaggleError, match="rejected the dataset ada/wheels-of-goldfold: its status is"):
        kernels.share(client, "ada/wheels-of-goldfold", [tmp_path / "a.whl"], "wheels", 0.5)


def test_kaggles_refusal_of_a_dataset_is_passed_on(kaggle, client, tmp_path, monkeypatch):
    (tmp_path / "a.whl").write_bytes(b"1")
    monkeypatch.setattr(kaggle, "create_dataset", lambda ask: {"error": "The title is taken", "status": "error"})
    with pytest.raises(KaggleError, match="rejected the dataset ada/wheels-of-goldfold: The title is taken"):
        kernels.share(client, "ada/wheels-of-goldfold", [tmp_path / "a.whl"], "wheels", 20)


def test_a_secret_in_the_log_is_hidden(kaggle, client):
    told = plan(commands=(("-c", f"print('the key is {kaggle.key}'); print('Authorization: Bearer abcdefgh')"),))
    _, ended, log = go(client, told)
    assert ended.status == "COMPLETE"
    assert "the key is [hidden]" in log
    assert kaggle.key not in log
    assert "abcdefgh" not in log


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A server on which fold 0 was trained: (server, client, pushed)."""
    folder = tmp_path_factory.mktemp("finished")
    with FakeKaggle(folder) as server:
        server.contests["flowers"] = Contest(FILES)
        client = Client(server.environment(folder), QUICK, lambda line: None)
        yield server, client, go(client, plan("0"))[0]


def test_an_output_of_another_run_is_never_taken(finished, tmp_path):
    _, client, pushed = finished
    with pytest.raises(
        UserError, match="is of run run-1, not of run-2: another version; `make kernel` fetches it again"
    ):
        kernel_results.pull(client, pushed, "run-2", tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


@pytest.mark.parametrize("fault", ["expired", "html", "drop"])
def test_a_bad_answer_for_an_output_file_is_never_taken_for_it(finished, tmp_path, fault):
    kaggle, client, pushed = finished
    told = plan("0")
    kaggle.faults["output"] = [fault]
    if fault == "html":  # looks like a good answer: only the checksum tells
        with pytest.raises(UserError, match="fetches it again"):
            bring(client, told, pushed, tmp_path / "here", tmp_path / "pulled")
        assert folds(tmp_path / "here") == []
    bring(client, told, pushed, tmp_path / "here", tmp_path / "pulled")  # what shows as a failure is asked for again
    assert folds(tmp_path / "here") == ["fold0"]


def test_an_output_file_that_would_leave_the_folder_is_refused(finished, tmp_path, monkeypatch):
    kaggle, client, pushed = finished
    evil = {"files": [{"fileName": "../evil.txt", "url": "http://storage.test/outputs/x"}]}
    monkeypatch.setattr(kaggle, "list_kernel_session_output", lambda ask: evil)
    with pytest.raises(KaggleError, match=r"an output file is called '../evil.txt'"):
        kernel_results.pull(client, pushed, "run-1", tmp_path / "deep" / "pulled")
    assert not list(tmp_path.rglob("evil.txt"))


def harm(folder, what):
    pack = next(folder.glob("*.pack"))
    listing = folder / "goldfold-output.json"
    told = json.loads(listing.read_text())
    if what == "flipped":
        pack.write_bytes(pack.read_bytes()[:-1] + b"x")
    elif what == "absent":
        pack.unlink()
    elif what == "elsewhere":
        told["units"][0]["unit"] = "../../evil/members/cnn/0123456789ab/fold0"
        listing.write_text(json.dumps(told))
    elif what == "not asked for":
        told["units"][0]["unit"] = "competition"
        listing.write_text(json.dumps(told))
    elif what == "no list":
        listing.unlink()
    else:
        listing.write_text("{")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("flipped", "is missing or damaged"),
        ("absent", "is missing or damaged"),
        ("elsewhere", "unexpected result"),
        ("not asked for", "unexpected result"),
        ("no list", "left no goldfold-output.json"),
        ("torn list", "is damaged: `make kernel` fetches it again"),
    ],
)
def test_a_damaged_output_is_refused_and_nothing_is_merged(tmp_path, what, message):
    fold = tmp_path / "there/work/flowers/members/cnn/0123456789ab/fold0"
    fold.mkdir(parents=True)
    (fold / "weights.npz").write_bytes(bytes(1000))
    write_manifest(fold / "manifest.json", {}, [fold / "weights.npz"], {}, {})
    carry(tmp_path / "there", tmp_path / "pulled")
    whole = kernel_results.read_output(tmp_path / "pulled", "carried", "it")
    assert kernel_results.merge(whole, tmp_path / "good", COLLECT, 200).taken == (
        "work/flowers/members/cnn/0123456789ab/fold0",
    )
    harm(tmp_path / "pulled", what)
    with pytest.raises(UserError, match=message):
        kernel_results.merge(
            kernel_results.read_output(tmp_path / "pulled", "carried", "it"), tmp_path / "here", COLLECT, 200
        )
    assert not (tmp_path / "here").exists() or not list((tmp_path / "here").rglob("*.npz"))


def test_the_version_that_was_pushed_is_asked_for_not_the_newest(kaggle, client, tmp_path):
    first, second = plan("0", run="one"), plan("1", run="two")
    pushed, _, _ = go(client, first)
    assert go(client, second)[0].version == 2
    assert kernel_results.pull(client, pushed, "one", tmp_path / "pulled").units == (
        "work/flowers/members/cnn/0123456789ab/fold0",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machine_shape": "TpuV38"}, "TpuV38 is retired and silently runs on TpuV5E8"),
        ({"machine_shape": "TpuV232"}, "runs it on a CPU"),
        ({"slug": "abc"}, "is not a slug of a kernel"),
        ({"slug": "Gold Fold"}, "is not a slug of a kernel"),
        ({"datasets": ("wheels",)}, "expected owner/slug"),
    ],
)
def test_settings_that_kaggle_would_silently_change_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        kernels.metadata(Kernel(**{**KERNEL.__dict__, **changes}), "a.py")


def test_a_tpu_kernel_asks_for_a_tpu_and_never_for_an_image():
    about = kernels.metadata(Kernel(**{**KERNEL.__dict__, "machine_shape": "TpuV5E8"}), "a.py")
    assert (about["enable_tpu"], about["enable_gpu"], about["machine_shape"]) == (True, False, "TpuV5E8")
    assert not [key for key in about if "docker" in key]
    assert about["title"].replace(" ", "-") == KERNEL.slug  # Kaggle makes the slug of the title


def test_the_notebook_does_the_same_in_cells(tmp_path):
    folder = tmp_path / "kaggle" / "working"
    folder.mkdir(parents=True)
    (tmp_path / "kaggle/input/competitions/flowers/train").mkdir(parents=True)
    (tmp_path / "kaggle/input/competitions/flowers/sample_submission.csv").write_text("id,label\n")
    (tmp_path / "kaggle/input/competitions/flowers/train/01.tfrec").write_bytes(bytes(2000))
    kernels.write_folder(KERNEL, packing.pack(project(), plan("3")), tmp_path / "push", as_notebook=True)
    assert json.loads((tmp_path / "push/kernel-metadata.json").read_text())["kernel_type"] == "notebook"
    cells = json.loads((tmp_path / "push/goldfold-flowers.ipynb").read_text())["cells"]
    assert cells[0]["cell_type"] == "markdown"
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    assert kernel_results.read_output(folder, "run-1", "it").units == ("work/flowers/members/cnn/0123456789ab/fold3",)


def test_a_project_that_kaggle_would_not_take_is_refused():
    import random

    with pytest.raises(UserError, match=r"the packed project has .* characters, Kaggle accepts 1,000,000"):
        packing.pack({"big.bin": random.Random(0).randbytes(900_000)}, plan("0"))


def test_the_real_project_fits_into_a_kernel():
    root = Path(__file__).parents[2]
    files = packing.project_files(root, ["competition/**/*.py", "pipelines/**/*.py", "params.yaml", "recipes/*.yaml"])
    assert len(packing.pack(files, plan("0"))) < packing.LARGEST / 2


def test_the_quota_is_shown_in_hours(kaggle, client):
    quota = kernels.quota(client)
    assert (quota.tpu_used, quota.tpu_allowed, quota.gpu_allowed, quota.refresh[:10]) == (1.0, 20.0, 30.0, "2026-01-10")


def test_a_kernel_that_does_not_end_in_time_is_still_running(kaggle, client):
    told = plan("9", seconds=30)
    pushed = kernels.push(client, KERNEL, packing.pack(project(), told))
    until = time.monotonic() + 10
    while kaggle.kernels["ada/goldfold-flowers"][0].status != "RUNNING" and time.monotonic() < until:
        time.sleep(0.05)
    kaggle.faults["GetKernelSessionStatus"] = ["503"]
    impatient = type(client)(client.environment, type(client.patience)(3, 0.05, 1.0, 5.0), client.say)
    assert kernels.follow(impatient, pushed, lambda text: None, 0.1, 0.1).status == "RUNNING"


@pytest.mark.parametrize("what", ["whole", "flipped", "absent", "elsewhere"])
def test_a_kernel_resumes_only_from_complete_results(tmp_path, what):
    fold = tmp_path / "there/work/flowers/members/cnn/0123456789ab/fold0"
    fold.mkdir(parents=True)
    (fold / "weights.npz").write_bytes(bytes(1000))
    carry(tmp_path / "there", tmp_path / "inputs/carried")
    if what != "whole":
        harm(tmp_path / "inputs/carried", what)
    restored = restore(tmp_path / "inputs", tmp_path / "root")
    assert restored == (["work/flowers/members/cnn/0123456789ab/fold0"] if what == "whole" else [])
    assert len(list(tmp_path.rglob("weights.npz"))) == (2 if what == "whole" else 1)

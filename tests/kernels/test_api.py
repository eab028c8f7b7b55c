import json
import random
import shutil
from dataclasses import replace
from functools import partial

import pytest
from builders import ROOT, params, write_weights
from fake_kaggle.parts import FILES, QUICK, Contest, Run
from fake_kaggle.server import FakeKaggle

from competition.config.errors import UserError
from competition.files.manifest import files_intact, read_manifest
from competition.kaggle.attempts import UnknownOutcome
from competition.kaggle.client import Client
from competition.kaggle.errors import KaggleError
from competition.kernels import api as kernels
from competition.kernels import packing
from competition.kernels import push as kernel_push
from competition.kernels import results as kernel_results
from competition.kernels.kernel_script import install, restore

# A minimal project that "trains" the given folds from the competition's files and writes real manifests.
TRAIN = """
import pathlib, sys, time
from competition.files.manifest import write_manifest
data, folds = pathlib.Path(sys.argv[1]), sys.argv[2:]
for fold in folds:
    folder = pathlib.Path("work/flowers/members/cnn/0123456789ab") / f"fold{fold}"
    if (folder / "manifest.json").exists():
        print(f"fold {fold}: current", flush=True)
        continue
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.npz").write_bytes((data / "train/01.tfrec").read_bytes()[:1000] + fold.encode())
    if fold == "9":
        print("fold 9: runs until it is stopped", flush=True)
        time.sleep(600)
    if fold == "8":
        raise SystemExit("fold 8: broken")
    write_manifest(folder / "manifest.json", {"fold": fold}, [folder / "weights.npz"], {}, {})
    print(f"fold {fold}: trained", flush=True)
"""
TRAIN_FOLDS = ("train.py", "{input:sample_submission.csv}")
COLLECT, RUN = ("work/*/members/*/*/fold*",), "work/flowers/members/cnn/0123456789ab"
MODEL = "keras/dinov2/keras/dinov2_small/1"
NAME = "ada/goldfold-flowers"
KERNEL = kernels.Kernel("ada", "goldfold-flowers", "", internet=False, competition="flowers", datasets=(), seconds=600)


def project():
    modules = ("__init__", "files/manifest", "config/digests", "config/faults")
    names = [f"competition/{module}.py" for module in modules]
    return {"train.py": TRAIN.encode(), **{name: (ROOT / name).read_bytes() for name in names}}


def plan(*folds, run="run-1", seconds=60, **changes):
    return replace(packing.Plan(run, ((*TRAIN_FOLDS, *folds),), COLLECT, {}, {}, {}, "", 1, seconds, 1), **changes)


def push_and_follow(client, kernel_plan, kernel=KERNEL):
    version = kernels.push(client, kernel, packing.pack(project(), kernel_plan))
    log = []
    return version, kernels.follow(client, version, log.append, 60, 0.1), "".join(log)


def import_results(client, version, work, run="run-1"):
    kernel_results.merge(kernel_results.pull(client, version, run, work.parent / "pulled"), work, COLLECT)


def pack_results(root, folder):
    folders = {each.relative_to(root).as_posix(): (each, [*each.rglob("*.*")]) for each in root.glob(COLLECT[0])}
    return packing.carry(folders, folder)


def folds(work):
    manifests = sorted((work / "work/flowers/members/cnn").glob("*/fold*/manifest.json"))
    return [path.parent.name for path in manifests if files_intact(path, read_manifest(path))]


def test_results_are_imported_although_a_command_failed_and_complete_local_ones_stay(kaggle, client, tmp_path) -> None:
    local = tmp_path / "here" / RUN / "fold0"
    write_weights(local, b"mine")
    version, outcome, log = push_and_follow(client, plan("0", "1", "8", "2"), replace(KERNEL, models=(MODEL,)))
    assert (version.owner, version.slug, version.version, outcome.status) == ("ada", "goldfold-flowers", 1, "ERROR")
    assert [log.count(f"fold {n}: trained") for n in "012"] == [1, 1, 0] and "fold 8: broken" in log
    output = kernel_results.pull(client, version, "run-1", tmp_path / "pulled")
    assert (output.status, output.problem.endswith("failed, exit code 1")) == ("failed", True)
    merged = kernel_results.merge(output, tmp_path / "here", COLLECT)
    assert (merged["imported"], merged["kept"]) == ([f"{RUN}/fold1"], [f"{RUN}/fold0"])
    assert (local / "weights.npz").read_bytes() == b"mine"
    assert folds(tmp_path / "here") == ["fold0", "fold1"]
    request = kaggle.kernels[NAME][0].request
    assert (request["isPrivate"], request["competitionDataSources"]) == (True, ["flowers"])
    assert "dockerImage" not in request and request["modelDataSources"] == [MODEL]


def test_training_stopped_by_the_time_limit_is_resumed(kaggle, client, tmp_path):
    # What exists when the time is up is left in the output; what would have come later is not missed.
    left = {"weights": "work/flowers/members/cnn/*/fold0/weights.npz", "submission.csv": "work/never-made.csv"}
    version, outcome, _ = push_and_follow(client, plan("0", "9", seconds=6, copy_out=left))
    output = kernel_results.pull(client, version, "run-1", tmp_path / "pulled")
    assert (outcome.status, output.status) == ("COMPLETE", "cut")
    assert (output.folder / "weights").is_file() and not (output.folder / "submission.csv").exists()
    merged = kernel_results.merge(output, tmp_path / "here", COLLECT)
    assert (merged["imported"], merged["unfinished"]) == ([f"{RUN}/fold0"], [f"{RUN}/fold9"])
    packed = pack_results(tmp_path / "here", tmp_path / "carried")
    kernels.upload_dataset(client, "ada/goldfold-carried", packed, "fold 0", 20)
    kernel = replace(KERNEL, datasets=("ada/goldfold-carried",))
    version, _, log = push_and_follow(client, plan("0", "1", run="run-2"), kernel)
    assert "fold 0: current" in log and "fold 1: trained" in log
    import_results(client, version, tmp_path / "here", "run-2")
    assert folds(tmp_path / "here") == ["fold0", "fold1"]


def test_a_missing_module_that_cannot_be_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RuntimeError, match="no_such_module cannot be imported and could not be installed: enable the"):
        install({"no_such_module": "no-such-module"}, tmp_path / "empty")


def test_a_source_that_kaggle_would_drop_is_an_error(kaggle, client):
    kernel = replace(KERNEL, datasets=("ada/absent",))
    message = "Kaggle would run ada/goldfold-flowers without its dataset sources ada/absent"
    with pytest.raises(KaggleError, match=message):
        kernels.push(client, kernel, packing.pack(project(), plan("0")))


def test_sharing_a_dataset_waits_until_kernels_can_read_it(kaggle, client, tmp_path):
    (tmp_path / "a.whl").write_bytes(b"1")
    kaggle.dataset_polls = 1
    kaggle.faults["GetDatasetStatus"] = ["404", "503", "html"]  # the first one: there is no such dataset
    kernels.upload_dataset(client, "ada/wheels-of-goldfold", [tmp_path / "a.whl"], "wheels", 20)
    assert kaggle.dataset_polls == -1 and kaggle.datasets["ada/wheels-of-goldfold"]["a.whl"] == b"1"
    kaggle.dataset_polls = 10**9
    with pytest.raises(KaggleError, match="rejected the dataset ada/wheels-of-goldfold: it is not ready after 0 s"):
        kernels.upload_dataset(client, "ada/wheels-of-goldfold", [tmp_path / "a.whl"], "wheels", 0.5)


@pytest.fixture(scope="module")
def finished_kernel(tmp_path_factory):
    """A server on which fold 0 was trained by a kernel that then printed secrets: (server, client, kernel version, log)."""
    folder = tmp_path_factory.mktemp("test_prints_a_secret")  # the searches for secrets know this name
    with FakeKaggle(folder) as server:
        server.contests["flowers"] = Contest(FILES)
        client = Client(server.environment(folder), QUICK, lambda line: None)
        prints = ("-c", f"print('the key is {server.key}'); print('Authorization: Bearer abcdefgh')")
        version, _, log = push_and_follow(client, plan("0", commands=((*TRAIN_FOLDS, "0"), prints)))
        yield server, client, version, log


def test_a_secret_in_the_log_is_hidden(finished_kernel):
    kaggle, _, _, log = finished_kernel
    assert "fold 0: trained" in log and "the key is [hidden]" in log
    assert kaggle.key not in log and "abcdefgh" not in log


def test_the_output_of_another_run_is_never_used(finished_kernel, tmp_path):
    _, client, version, _ = finished_kernel
    with pytest.raises(UserError, match="is of run run-1, not of run-2: another version; `make kernel` fetches it"):
        kernel_results.pull(client, version, "run-2", tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


@pytest.mark.parametrize("fault", ["expired", "html"])
def test_an_error_response_is_never_used_as_an_output_file(finished_kernel, tmp_path, fault):
    kaggle, client, version, _ = finished_kernel
    kaggle.faults["output"] = [fault]
    if fault == "html":  # the response looks valid; only the checksum differs
        with pytest.raises(UserError, match="fetches it again"):
            import_results(client, version, tmp_path / "here")
        assert folds(tmp_path / "here") == []
    import_results(client, version, tmp_path / "here")  # a detected failure is retried
    assert folds(tmp_path / "here") == ["fold0"]


def test_an_output_file_outside_the_folder_is_an_error(finished_kernel, tmp_path, monkeypatch):
    kaggle, client, version, _ = finished_kernel
    evil = {"files": [{"fileName": "../evil.txt", "url": "http://storage.test/outputs/x"}]}
    monkeypatch.setattr(kaggle, "list_kernel_session_output", lambda ask: evil)
    with pytest.raises(KaggleError, match=r"an output file is called '../evil.txt'"):
        kernel_results.pull(client, version, "run-1", tmp_path / "deep" / "pulled")
    assert not list(tmp_path.rglob("evil.txt"))


def edit(listing, **changes):
    content = json.loads(listing.read_text())
    content["archives"][0] |= changes
    listing.write_text(json.dumps(content))


OUTSIDE = "../../evil/members/cnn/0123456789ab/fold0"
DAMAGED = {
    "flipped": (lambda listing, pack: pack.write_bytes(pack.read_bytes()[:-1] + b"x"), "is missing or damaged"),
    "path outside the folder": (lambda listing, pack: edit(listing, result_folder=OUTSIDE), "unexpected result"),
    "archive outside it": (lambda listing, pack: edit(listing, file=f"../{pack.name}"), "is missing or damaged"),
    "no listing": (lambda listing, pack: listing.unlink(), "left no goldfold-output.json"),
    "truncated listing": (lambda listing, pack: listing.write_text("{"), "is damaged: `make kernel` fetches it again"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_output_is_merged_nowhere_and_no_kernel_resumes_from_it(tmp_path, name):
    write_weights(tmp_path / "there" / RUN / "fold0", bytes(1000))
    pulled = tmp_path / "inputs" / "pulled"
    pack, listing = pack_results(tmp_path / "there", pulled)
    undamaged = kernel_results.read_output(pulled, "carried", "it")
    assert kernel_results.merge(undamaged, tmp_path / "good", COLLECT)["imported"] == [f"{RUN}/fold0"]
    assert restore(tmp_path / "inputs", tmp_path / "good root") == [f"{RUN}/fold0"]
    shutil.copyfile(pack, tmp_path / "inputs" / pack.name)  # an undamaged one
    damage, message = DAMAGED[name]
    damage(listing, pack)
    with pytest.raises(UserError, match=message):
        kernel_results.merge(kernel_results.read_output(pulled, "carried", "it"), tmp_path / "here", COLLECT)
    if name != "archive outside it":
        assert restore(tmp_path / "inputs", tmp_path / "root") == []
        folders = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.npz")}
        assert folders == {"there", "good", "good root"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machine_shape": "TpuV38"}, "TpuV38 is retired and silently runs on TpuV5E8"),
        ({"machine_shape": "TpuV232"}, "runs it on a CPU"),
        ({"slug": "Gold Fold"}, "is not a slug of a kernel"),
    ],
)
def test_settings_that_kaggle_would_silently_change_are_errors(changes, message):
    with pytest.raises(UserError, match=message):
        replace(KERNEL, **changes)


def test_the_real_project_fits_into_a_kernel_and_a_larger_one_is_an_error():
    files = packing.source_files(ROOT, packing.kernel_params(params(), params().members))
    assert len(packing.pack(files, plan("0"))) < 0.7 * packing.MAX_KERNEL_CHARACTERS
    with pytest.raises(UserError, match=r"the packed project has .* characters, Kaggle accepts 1,000,000"):
        packing.pack({"big.bin": random.Random(0).randbytes(900_000)}, plan("0"))


@pytest.fixture
def state(kaggle, tmp_path):
    """Where the push of a kernel that runs without end is recorded."""
    kaggle._run_kernel = lambda run: setattr(run, "status", "RUNNING")
    return tmp_path / "run.json"


def test_a_tpu_kernel_requests_a_tpu_and_no_docker_image(kaggle, client, state):
    kernels.push(client, replace(KERNEL, machine_shape="TpuV5E8"), "print()")
    request = kaggle.kernels[NAME][0].request
    assert (request["enableTpu"], request["enableGpu"], request["machineShape"]) == (True, False, "TpuV5E8")
    assert not [key for key in request if "docker" in key.lower()]
    assert request["newTitle"].replace(" ", "-") == KERNEL.slug  # Kaggle makes the slug from the title


def push(client, state, run="run-2"):
    previous = kernel_push.newest_version(client, "ada", "goldfold-flowers")
    intent = kernel_push.PushIntent("ada", "goldfold-flowers", 0, "", run, False, ("work/*",), previous)
    source = f"print('{run}', 'goldfold-output.json')"
    return kernel_push.push_once(client, partial(kernels.push, client, KERNEL, source, True), intent, state, 300.0)


def test_another_notebook_of_the_same_name_gets_no_version_unless_requested(kaggle, client):
    kaggle.kernels[NAME].append(Run({"text": "import pandas"}, kaggle.folder))
    with pytest.raises(UserError, match=r"is another notebook, .* SET=\"kernel.slug=...\", or AGAIN=1"):
        kernel_push.newest_version(client, "ada", "goldfold-flowers")
    assert kernel_push.newest_version(client, "ada", "goldfold-flowers", may_be_other=True) == 1


def test_a_push_is_recorded_before_it_and_searched_for_after_a_lost_response(kaggle, client, state, monkeypatch):
    states, save_kernel = [], kaggle.save_kernel
    monkeypatch.setattr(kaggle, "save_kernel", lambda ask: states.append(state.read_text()) or save_kernel(ask))
    intent = push(client, state, run="run-1")
    assert '"run": "run-1"' in states[0] and '"version": 0' in states[0]
    assert (intent.version, kernel_push.read_push_intent(state)) == (1, intent)
    kaggle.faults["SaveKernel"] = ["lost"]
    kaggle.unlisted_looks = 1
    intent = push(client, state)
    assert (intent.previous, intent.version) == (1, 2)
    assert len(kaggle.kernels[NAME]) == kaggle.count("SaveKernel") == 2
    assert kernel_push.read_push_intent(state) == intent


def test_a_version_pushed_by_somebody_else_is_not_mistaken_for_this_push(kaggle, client, state):
    push(client, state, run="run-1")
    other = kaggle.kernels[NAME][0]
    kaggle.faults["SaveKernel"] = ["500"]  # the push never arrived, but the client cannot know that
    # previous: as if the other version was made after this machine looked for the newest one.
    intent = kernel_push.PushIntent("ada", "goldfold-flowers", 0, "", "run-2", False, (), previous=0)
    with pytest.raises(UnknownOutcome, match="`make kernel AGAIN=1` pushes it once more"):
        kernel_push.push_once(client, partial(kernels.push, client, KERNEL, "print('run-2')"), intent, state, 0.1)
    assert (kaggle.kernels[NAME], kaggle.count("SaveKernel")) == ([other], 2)
    assert kernel_push.read_push_intent(state).version == 0  # the next `make kernel` searches again
    with pytest.raises(UnknownOutcome):
        kernel_push.find_lost_push(client, kernel_push.read_push_intent(state), state, 0.1)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("429:900", "refuses more requests .* run this again in 15 minutes, after"),
        ("400:The title is taken", "The title is taken"),
        ("403", "403"),
    ],
)
def test_a_rejected_push_leaves_no_intent_and_is_not_searched_for(kaggle, client, state, fault, message):
    kaggle.faults["SaveKernel"] = [fault] * 9
    with pytest.raises(KaggleError, match=message):
        push(client, state)
    assert (kaggle.count("SaveKernel"), kaggle.count("GetKernel"), state.exists()) == (1, 1, False)

"""Where the data are on each kind of machine; files there, in a bucket and where fsspec reaches, are read and written alike."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import ROOT, files_below
from fake_kaggle.gcs import FakeGcs
from preloaded import run_preloaded

from competition.config.errors import UserError
from competition.storage import files
from competition.storage import locations as storage

NODE = {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "TPU_NAME": "node-1"}
MACHINES = {
    "local": {},
    "kaggle": {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "ISTPUVM": "1", "TPU_NAME": "local"},
    "kaggle tpu node": NODE,
    "tpu node": {"TPU_NAME": "grpc://10.0.0.2:8470"},
}


def choose(environment, paths=(), bucket="", kaggle_path="/kaggle/input/flowers"):
    exists, local = set(paths).__contains__, "work/flowers/raw"
    return storage.choose_location(environment, exists, lambda _: kaggle_path, local, bucket, "flowers")


@pytest.mark.parametrize("name", MACHINES)
def test_every_kind_of_machine_is_detected_and_the_users_bucket_has_precedence_on_it(name):
    assert storage.machine(MACHINES[name], set().__contains__) == name
    assert choose(MACHINES[name], bucket="gs://mine/flowers/").path == "gs://mine/flowers"
    for bucket in ("mine/flowers", "gs://", "gs://UPPER/x"):
        with pytest.raises(UserError, match="expected gs://NAME"):
            choose(MACHINES[name], bucket=bucket)


def test_a_tpu_node_reads_googles_buckets_only():
    assert choose(NODE, kaggle_path="gs://kds-1").path == "gs://kds-1"
    with pytest.raises(UserError, match=r"a TPU node reads only gs://"):
        choose(NODE, kaggle_path="/kaggle/input/flowers")
    with pytest.raises(UserError, match=r"cannot read the local folder work/flowers/raw: copy it to a bucket \(gsutil"):
        choose({"TPU_NAME": "node-1"}, paths=["work/flowers/raw"])
    with pytest.raises(UserError, match="a remote TPU node reads only gs://"):
        choose({"TPU_NAME": "grpc://10.0.0.2:8470"}, bucket="s3://mine/x")
    assert choose({}, bucket="s3://mine/x").path == "s3://mine/x"


def test_inputs_are_found_wherever_kaggle_mounts_them(tmp_path):
    folders = [f"{tmp_path}/competitions/flowers", f"{tmp_path}/datasets/ada/flowers-copy/deep"]
    for folder in folders:
        Path(folder).mkdir(parents=True)
        Path(folder, "sample_submission.csv").touch()
    assert storage.find_inputs("sample_submission.csv", str(tmp_path)) == folders
    assert storage.find_inputs("sample_submission.csv", str(tmp_path / "absent")) == []


def test_a_local_location_is_listed_and_read(tmp_path):
    (tmp_path / "a.tfrec").write_bytes(b"1")
    assert storage.try_place(str(tmp_path), os.environ, 15).startswith("1 entries, read in ")
    with pytest.raises(UserError, match=r"cannot be read: .*absent"):
        storage.try_place(str(tmp_path / "absent"), os.environ, 15)
    os.mkfifo(tmp_path / "0.tfrec")  # reading it waits for ever
    with pytest.raises(UserError, match=r"did not answer within 0.5 s: the disk does not answer"):
        storage.try_place(str(tmp_path), os.environ, 0.5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty is empty: check the path"):
        storage.try_place(str(tmp_path / "empty"), os.environ, 15)


@pytest.fixture(scope="module")
def gcs(tmp_path_factory):
    with FakeGcs(tmp_path_factory.mktemp("gcs")) as server:
        server.buckets["mine"] = {"data/fold0-00-2.tfrec": b"1234"}
        server.denied.add("denied")
        yield server


@pytest.fixture
def forks(monkeypatch):
    """The processes that read a place are forks of one that has imported TensorFlow."""

    def run(command, env, **_):
        code, out, err = run_preloaded("", command[3:], ROOT, env, command[2])
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    monkeypatch.setattr(storage, "subprocess", SimpleNamespace(run=run))


def test_a_bucket_is_read_by_the_real_file_system_and_an_error_names_cause_and_account(gcs, forks) -> None:
    environment = {**os.environ, **gcs.environment()}
    assert storage.try_place("gs://mine/data", environment, 15).startswith("1 entries, read in ")
    assert "GET /mine/data%2Ffold0-00-2.tfrec" in gcs.calls
    message = "this machine's service account has no read access: grant it the role"
    with pytest.raises(UserError, match=message):
        storage.try_place("gs://denied/data", environment, 15)


COPY = """
import sys
from dataclasses import replace
from pathlib import Path
import keras, numpy as np, tensorflow as tf
from competition.config.params_file import load_params
from competition.storage import files
from competition.training.model import build
folder = sys.argv[1]
with tf.io.TFRecordWriter("gs://mine/records/fold0-00-300.tfrec") as writer:
    for number in range(300):
        writer.write(b"record %d" % number)
dataset = tf.data.TFRecordDataset(tf.io.gfile.glob("gs://mine/records/*.tfrec"), num_parallel_reads=2)
assert sum(1 for _ in dataset) == 300
for source, target in ((folder + "/source", "gs://mine/member"), ("gs://mine/member", folder + "/back")):
    files.copy_files(source, target, files.names(source))
files.write_bytes("gs://mine/probs.npy", b"123")
with files.local_copy("gs://mine/probs.npy") as copy:
    assert copy.endswith("/probs.npy") and open(copy, "rb").read() == files.read_bytes("gs://mine/probs.npy") == b"123"
member = load_params(Path(sys.argv[2])).members["small"]
member = replace(member, architecture="MobileNet", alpha=0.25, image_size=32, weights="gs://mine/own.weights.h5")
network = keras.applications.MobileNet(weights=None, include_top=False, input_shape=(32, 32, 3), alpha=0.25)
network.save_weights(folder + "/own.weights.h5")
files.write_bytes(member.weights, open(folder + "/own.weights.h5", "rb").read())
assert all(np.array_equal(a, b) for a, b in zip(network.get_weights(), build(member, 4).get_weights()))
try:
    files.read_bytes("gs://mine/absent")
except ValueError as error:
    print(error)
"""


def test_records_weights_and_predictions_are_stored_in_a_bucket_and_a_member_starts_from_weights_there(gcs, tmp_path):
    fold = tmp_path / "source" / "fold0"
    fold.mkdir(parents=True)
    for name in ("weights.npz", "oof.npz", "manifest.json"):
        (fold / name).write_bytes(name.encode() * 1000)
    arguments, environment = [str(tmp_path), str(ROOT / "params.yaml")], {**os.environ, **gcs.environment()}
    code, out, err = run_preloaded("", arguments, ROOT, environment, COPY)
    assert code == 0, err[-2000:]
    assert out.startswith("gs://mine/absent cannot be read: ")
    assert files_below(tmp_path / "back") == files_below(tmp_path / "source")
    uploads = [name for name in gcs.buckets["mine"] if name.startswith("member/") and not name.endswith("/")]
    assert uploads[-1] == "member/fold0/manifest.json"  # last


def test_a_network_that_does_not_respond_is_an_error_within_the_time_limit(forks):
    unreachable = {"https_proxy": "http://127.0.0.1:9", "NO_GCE_CHECK": "true", "GOOGLE_AUTH_TOKEN_FOR_TESTING": "x"}
    with pytest.raises(UserError, match=r"did not answer within 3 s: Google's storage cannot be reached \(account:"):
        storage.try_place("gs://mine/data", {**os.environ, **unreachable}, 3)


def test_a_finished_file_gets_its_name_an_unfinished_one_leaves_nothing_and_a_damaged_one_is_missing(tmp_path):
    path = tmp_path / "train" / "00.tfrec"
    with files.temporary_file(str(tmp_path)) as temporary:
        temporary.write_bytes(b"whole")
        inode = temporary.stat().st_ino
        assert list(tmp_path.iterdir()) == [temporary] and files.names(str(tmp_path)) == []
        files.publish(temporary, str(path))
    assert path.read_bytes() == b"whole" and path.stat().st_ino == inode
    assert files.names(str(tmp_path)) == ["train/00.tfrec"]
    with pytest.raises(ZeroDivisionError), files.temporary_file(str(tmp_path)) as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [path]
    with pytest.raises(UserError, match=r"absent cannot be read: No such file or directory; check the path"):
        files.read_bytes(f"{tmp_path}/absent")
    (tmp_path / "a.json").write_text('{"digest": ')
    assert files.read_json(f"{tmp_path}/a.json") is None and files.read_json(f"{tmp_path}/b.json") is None
    assert files.digest(f"{tmp_path}/b.json") is None


def test_a_folder_of_fsspec_is_written_listed_read_and_removed_like_a_local_one(tmp_path):
    pytest.importorskip("fsspec", reason="other addresses than gs:// need fsspec (goldfold[remote])")
    folder = f"memory://{tmp_path.name}"
    files.write_bytes(f"{folder}/run/weights.npz", b"weights")
    files.write_json(f"{folder}/run/manifest.json", {"complete": True})
    assert files.names(folder) == ["run/manifest.json", "run/weights.npz"]
    files.copy_files(folder, str(tmp_path / "copy"), files.names(folder))
    assert (tmp_path / "copy" / "run" / "weights.npz").read_bytes() == b"weights"
    with files.local_copy(f"{folder}/run/weights.npz") as path:
        assert Path(path).read_bytes() == b"weights"
    files.remove(f"{folder}/run/manifest.json")
    assert files.names(folder) == ["run/weights.npz"] and files.read_json(f"{folder}/run/manifest.json") is None
    with pytest.raises(UserError, match=r"run/absent cannot be read: .*absent; check the path and the credentials"):
        files.read_bytes(f"{folder}/run/absent")
    # An address that nothing reads is refused by its scheme.
    with pytest.raises(UserError, match=r"xyz://a: no file system for xyz:// .*use a local path or gs://"):
        files.names("xyz://a")

import os
import shutil
from pathlib import Path

import pytest
from fake_kaggle.gcs import FakeGcs
from preloaded import run_preloaded

from competition.config.errors import UserError
from competition.storage import locations as storage

ROOT = Path(__file__).parents[2]
VM = {"ISTPUVM": "1", "KAGGLE_KERNEL_RUN_TYPE": "Batch", "TPU_NAME": "local"}
NODE = {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "TPU_NAME": "node-1"}


def choose(environment, paths=(), bucket="", kaggle_path="/kaggle/input/flowers"):
    exists = set(paths).__contains__
    return storage.choose_location(environment, exists, lambda _: kaggle_path, "work/flowers/raw", bucket, "flowers")


MACHINES = {
    "local": ({}, ()),
    "kaggle": ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, ()),
    "kaggle tpu vm": (VM, ()),
    "kaggle tpu node": (NODE, ()),
    "colab": ({"COLAB_RELEASE_TAG": "r"}, ()),
    "colab tpu": ({"COLAB_RELEASE_TAG": "r"}, ("/dev/vfio/0",)),
    "cloud tpu vm": ({}, ("/dev/accel0",)),
    "tpu node": ({"TPU_NAME": "grpc://10.0.0.2:8470"}, ()),
}


@pytest.mark.parametrize("name", MACHINES)
def test_every_kind_of_machine_is_detected(name):
    environment, paths = MACHINES[name]
    assert storage.machine(environment, set(paths).__contains__) == name


def test_the_users_bucket_has_precedence_on_every_machine():
    for environment, paths in MACHINES.values():
        assert choose(environment, paths, bucket="gs://mine/flowers/").path == "gs://mine/flowers"


def test_a_tpu_node_reads_googles_buckets_only():
    assert choose(NODE, kaggle_path="gs://kds-1").path == "gs://kds-1"
    with pytest.raises(UserError, match=r"a TPU node reads only gs://"):
        choose(NODE, kaggle_path="/kaggle/input/flowers")
    with pytest.raises(UserError, match=r"cannot read the local folder work/flowers/raw: copy it to a bucket \(gsutil"):
        choose({"TPU_NAME": "node-1"}, paths=["work/flowers/raw"])
    with pytest.raises(UserError, match="a remote TPU node reads only gs://"):
        choose({"TPU_NAME": "grpc://10.0.0.2:8470"}, bucket="s3://mine/x")
    assert choose({}, bucket="s3://mine/x").path == "s3://mine/x"


@pytest.mark.parametrize("bucket", ["mine/flowers", "gs://", "gs://UPPER/x"])
def test_an_invalid_bucket_is_refused(bucket):
    with pytest.raises(UserError, match="expected gs://NAME"):
        choose({}, bucket=bucket)


def test_inputs_are_found_wherever_kaggle_mounts_them(tmp_path):
    for folder in ("competitions/flowers", "datasets/ada/flowers-copy/deep"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "sample_submission.csv").touch()
    (tmp_path / "other").mkdir()
    assert storage.find_inputs("sample_submission.csv", str(tmp_path)) == [
        str(tmp_path / "competitions/flowers"),
        str(tmp_path / "datasets/ada/flowers-copy/deep"),
    ]
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
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate of the fake Google Cloud Storage server, is not installed")
    with FakeGcs(tmp_path_factory.mktemp("gcs")) as server:
        server.buckets["mine"] = {"data/fold0-00-2.tfrec": b"1234"}
        server.denied.add("denied")
        yield server


def test_a_bucket_is_listed_and_read_by_the_real_file_system(gcs):
    check = storage.try_place("gs://mine/data", {**os.environ, **gcs.environment()}, 15)
    assert check.startswith("1 entries, read in ")
    assert "GET /mine/data%2Ffold0-00-2.tfrec" in gcs.calls


def test_the_error_of_an_unreadable_bucket_names_cause_and_account(gcs):
    message = "the token in GOOGLE_AUTH_TOKEN_FOR_TESTING has no read access: grant it the role"
    with pytest.raises(UserError, match=message):
        storage.try_place("gs://denied/data", {**os.environ, **gcs.environment()}, 15)


COPY = """
import json, sys
import numpy as np, tensorflow as tf
from competition.storage import files
folder = sys.argv[1]
def copy(source, target):
    files.copy_files(source, target, files.names(source))
    return len(files.names(target))
with tf.io.TFRecordWriter("gs://mine/records/fold0-00-300.tfrec") as writer:
    for number in range(300):
        writer.write(b"record %d" % number)
dataset = tf.data.TFRecordDataset(tf.io.gfile.glob("gs://mine/records/*.tfrec"), num_parallel_reads=2)
print("records", sum(1 for _ in dataset))
print("out", copy(folder + "/source", "gs://mine/member"), files.names("gs://mine/member"))
print("back", copy("gs://mine/member", folder + "/back"))
print("weights", float(np.load(folder + "/back/fold0/weights.npz")["w"].sum()))
files.write_bytes("gs://mine/probs.npy", b"123")
print("bytes", files.read_bytes("gs://mine/probs.npy"))
with files.local_copy("gs://mine/probs.npy") as copy:
    print("copy", copy.endswith("/probs.npy"), open(copy, "rb").read())
from dataclasses import replace
from pathlib import Path
import keras
from competition.config.params_file import load_params
from competition.training.model import build
member = load_params(Path(sys.argv[2])).members["small"]
member = replace(member, architecture="MobileNet", alpha=0.25, image_size=32, weights="gs://mine/own.weights.h5")
network = keras.applications.MobileNet(weights=None, include_top=False, input_shape=(32, 32, 3), alpha=0.25)
network.save_weights(folder + "/own.weights.h5")
files.write_bytes(member.weights, open(folder + "/own.weights.h5", "rb").read())
built = build(member, 4).get_weights()
print("started", all(np.array_equal(a, b) for a, b in zip(network.get_weights(), built)))
for wrong in ("gs://mine/absent", "s4://mine/x"):
    try:
        files.read_bytes(wrong)
    except ValueError as error:
        print("refused", str(error)[:60])
"""


def test_records_weights_and_predictions_are_stored_in_a_bucket_and_a_member_starts_from_weights_there(gcs, tmp_path):
    import numpy as np

    fold = tmp_path / "source" / "fold0"
    fold.mkdir(parents=True)
    np.savez(fold / "weights.npz", w=np.arange(1000.0))
    np.savez(fold / "oof.npz", ids=np.array(["a", "b"]), probs=np.full((2, 2), 0.5, np.float32))
    (fold / "manifest.json").write_text("{}")
    arguments = [str(tmp_path), str(ROOT / "params.yaml")]
    _, out, err = run_preloaded("", arguments, ROOT, {**os.environ, **gcs.environment()}, COPY)
    assert out.splitlines() == [
        "records 300",
        "out 3 ['fold0/manifest.json', 'fold0/oof.npz', 'fold0/weights.npz']",
        "back 3",
        "weights 499500.0",
        "bytes b'123'",
        "copy True b'123'",
        "started True",
        "refused gs://mine/absent cannot be read: The specified path gs://min",
        "refused s4://mine/x: no file system for s4:// (Protocol not known: s",
    ], err[-2000:]
    for file in fold.iterdir():
        assert (tmp_path / "back" / "fold0" / file.name).read_bytes() == file.read_bytes()
        assert gcs.buckets["mine"][f"member/fold0/{file.name}"] == file.read_bytes()
    uploads = [name for name in gcs.buckets["mine"] if name.startswith("member/") and not name.endswith("/")]
    assert uploads[-1] == "member/fold0/manifest.json"  # last


def test_a_network_that_does_not_respond_is_an_error_within_the_time_limit():
    environment = {
        **os.environ,
        "https_proxy": "http://127.0.0.1:9",
        "NO_GCE_CHECK": "true",
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "x",
    }
    with pytest.raises(UserError, match=r"did not answer within 3 s: Google's storage cannot be reached \(account:"):
        storage.try_place("gs://mine/data", environment, 3)

"""A whole competition at true size, from Kaggle's zip to the submission, with the clock, the disk and the memory of every stage.

    python -m benchmarks.dress_rehearsal flowers|plants|large [--share 0.05] [--kills] [--sessions 5] [--keep FOLDER]

Draws the competition with its true counts, class shares, image sizes, file names and layout, zips it, serves it from a Kaggle on
the loopback interface, and runs the verbs of its recipe as processes of their own: with one tiny network, one epoch and float32,
every other parameter as in the recipe. `large` is 120,000 images of 1,000 classes in class folders. --share: part of the rows of each class
(few rows of a rare class remain at any share).

Drawing is not measured. Of each stage: seconds; processor seconds, of its child processes too; largest memory without pages of
files, looked at up to 10 times a second; how much its files grew at the worst moment, which is the free disk that it needs; what it read
from the disk (not what was in memory) and wrote to it; milliseconds per image. The table is in Markdown, for docs/measured_runs.md.

The last stages of `flowers` train its folds with a network whose step waits as long as that of the fastest member of the recipe on a
v5e-8. `make bench` measures the compiled step on a batch in memory, which takes longer; the time outside of these steps is a share of all.

--kills: then runs the main job once more in another folder, which it removes at the end. It ends each long stage twice, after a third
of the time that the stage took by SIGTERM and after another third by SIGKILL, runs it to its end, and compares the submissions. Needs twice
the disk.
--sessions: after `prepare` trains two members for six epochs, predicts and blends, instead of the other stages. Then does the same by
`make kernel` in another folder, in sessions of so many minutes in place of Kaggle's 9 hours, and compares the submissions. The kernel is a
process on this machine that has only what was pushed and the competition's files.
"""

import argparse
import json
import math
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.drawn_competition import draw, stored_files, zip_and_remove
from competition.config.params_file import load_params
from competition.files.image_codec import decode
from competition.preflight.planning import sizes_of
from competition.prepare.adapter_types import settings_of
from competition.prepare.adapters import adapter_named
from competition.prepare.adapters.tables import read_csv
from competition.prepare.index import CHUNK, LOOK

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

from fake_kaggle.parts import SIGNATURE, STORAGE, Contest  # noqa: E402
from fake_kaggle.server import FakeKaggle  # noqa: E402

PAUSE = 0.1  # seconds between two looks at the files of a stage
# name -> (what it extends, block `competition`, side of the images that the network takes)
RECIPES = {
    "flowers": ("recipes/flowers.yaml", "{slug: rehearsal}", 512),
    "plants": ("recipes/plants.yaml", "{slug: rehearsal}", 512),
    "large": ("params.yaml", "{name: large, adapter: folder, slug: rehearsal}", 128),
}
PARAMS = """
extends: {root}/{recipe}
plugins: tiny.py
competition: {competition}
members:
  tiny: {{architecture: tiny, image_size: {size}, alpha: 1.0, weights: none}}
train: {{epochs: 1, precision: float32}}
tune: {{trials: 0, members: []}}
kaggle: {{first_wait: 0.1, longest_wait: 3.0, score_pause: 0.1}}
"""
# They look at few pixels: the step of tiny takes next to no time, so what is measured is everything around it; that of slow waits and
# leaves the processors of its host to the input, as a TPU does.
PLUGINS = """
def tiny(image_size, classes, layer=None, first=32):
    import keras

    inputs = keras.Input((image_size, image_size, 3))
    pixels = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs[:, first::64, first::64]))
    x = keras.layers.Dense(classes, name="logits")(pixels)
    return keras.Model(inputs, layer(x) if layer else x)

def other(image_size, classes):
    return tiny(image_size, classes, first=16)

def slow(image_size, classes):
    import time

    import jax
    import keras
    import numpy as np

    class Wait(keras.layers.Layer):
        def call(self, x, training=False):
            def wait(_):
                time.sleep(STEP_SECONDS)
                return np.float32(0)

            return x + jax.pure_callback(wait, jax.ShapeDtypeStruct((), np.float32), jax.lax.stop_gradient(x[0, 0])) if training else x

    return tiny(image_size, classes, Wait())

MODELS = {"tiny": tiny, "other": other, "slow": slow}
"""
THUMBNAILS = "each image decoded to 32 px once"
SLOW_STEP = "train 5 folds, JAX on 8 devices, the step of a v5e-8"
SLOW_BENCH = "bench of this step"
SLOW_EPOCHS = 15  # as in recipes/flowers.yaml
V5E_RATE = 1_024.0  # images per second: the fastest member of recipes/flowers.yaml at the 0.4 of its roofline that `make plan` assumes
EIGHT_DEVICES = "device.backend=jax device.logical_devices=8"
SLOW = f"{EIGHT_DEVICES} members.tiny.architecture=slow train.epochs={SLOW_EPOCHS}"
STAGES: Mapping[str, Sequence[str]] = {
    "doctor before": ("doctor",),
    "download": ("download", "--alone"),
    "prepare": ("prepare",),
    "doctor": ("doctor",),
    "resolve": ("resolve",),
    "train, TensorFlow": ("train", "--alone"),
    "predict": ("predict", "--alone"),
    "blend": ("blend",),
    "report": ("report",),
    "submit": ("submit",),
    "runs": ("runs",),
    "train fold 0, JAX on 8 devices": ("train", "--alone", "--fold", "0", "--force", "--set", EIGHT_DEVICES),
    SLOW_BENCH: ("bench", "--set", SLOW),
    SLOW_STEP: ("train", "--alone", "--set", SLOW),
}
# --sessions adds this to the parameters: at the size of the flowers, more than one session of 20 minutes.
TWO_MEMBERS = "members.other={{architecture: other, image_size: {size}, alpha: 1.0, weights: none}} train.epochs=6"
BEFORE_SESSIONS = ("doctor before", "download", "prepare", "doctor")
LONG_STAGES = ("download", "prepare", "train, TensorFlow", "predict", "blend")


@dataclass(frozen=True)
class Cost:
    """Of one stage. Bytes and seconds include those of its child processes."""

    seconds: float
    processor_seconds: float
    peak_memory: int  # bytes, without pages of files
    growth: int  # bytes that its files took beyond those at the start, at the worst moment
    read: int  # bytes from the disk; what other files in memory spare is not counted
    written: int  # bytes to the disk
    exit_code: int


def bytes_below(folder: Path) -> int:
    """Bytes on the disk of all files below `folder`."""
    total, folders = 0, [str(folder)]
    while folders:
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def memory_of(pid: int) -> int:
    """Memory of a process and its descendants now, bytes, without pages of files, which the system can drop at any time."""
    total = 0
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        total = 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            total += sum(map(memory_of, map(int, children.read_text().split())))
    return total


def disk_bytes() -> tuple[int, int]:
    """Bytes that this process and those that it waited for read from the disk and wrote to it."""
    lines = Path("/proc/self/io").read_text().splitlines()
    counts = {name: int(count) for name, count in (line.split(": ") for line in lines)}
    return counts["read_bytes"], counts["write_bytes"]


def measured(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    stop_after: float = math.inf,
    kind: int = signal.SIGKILL,
) -> Cost:
    """Run a process and look at it and at the files below `folder` until it ends.

    stop_after: seconds until it gets a signal of this kind.
    """
    before, start, worst, memory = bytes_below(folder), time.monotonic(), 0, 0
    read, written = disk_bytes()
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=dict(environment), stdout=output, stderr=subprocess.STDOUT)
        ended = False
        while not ended:
            # An ended process is looked at once more before it is reaped: its totals are then complete.
            ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            memory = max(memory, memory_of(process.pid))
            looked = time.monotonic()
            worst = max(worst, bytes_below(folder) - before)
            if not ended and time.monotonic() - start > stop_after:
                os.kill(process.pid, kind)  # Popen.send_signal could reap it
                stop_after = math.inf  # the second SIGTERM would end it at once
            elif not ended:
                time.sleep(max(PAUSE, time.monotonic() - looked))  # at most half of the time is spent looking
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    read_after, written_after = disk_bytes()
    seconds, processor_seconds = time.monotonic() - start, usage.ru_utime + usage.ru_stime
    return Cost(
        seconds, processor_seconds, memory, worst, read_after - read, written_after - written, process.returncode
    )


def row(name: str, cost: Cost, images: int) -> str:
    gigabytes = [f"{value / 1e9:.2f}" for value in (cost.peak_memory, cost.growth, cost.read, cost.written)]
    cells = [f"{cost.seconds:.1f}", f"{cost.processor_seconds:.1f}", *gigabytes, f"{1e3 * cost.seconds / images:.2f}"]
    failed = f" (exit code {cost.exit_code})" if cost.exit_code else ""
    return f"| {name}{failed} | {' | '.join(cells)} |"


@dataclass(frozen=True)
class WorkFolder:
    """One main job.  environment: of a process that has the loopback Kaggle as its Kaggle."""

    folder: Path
    environment: Mapping[str, str]
    work: str = "work"

    def run(self, title: str, *verb: str, stop_after: float = math.inf, kind: int = signal.SIGKILL) -> Cost:
        """Run a verb as a process; its output is logs/<title>.txt, and printed if it fails without a stop."""
        work, submissions = self.folder / self.work, self.folder / f"submissions of {self.work}"
        options = ["--params", self.folder / "params.yaml", "--work", work, "--submissions", submissions]
        command = [sys.executable, "-m", "pipelines", verb[0], *map(str, options), *verb[1:]]
        log = self.folder / "logs" / f"{self.work} {title}.txt"
        cost = measured(command, self.environment, work, log, stop_after, kind)
        if cost.exit_code and stop_after == math.inf:
            print(log.read_text()[-2000:], flush=True)
        return cost

    def submission(self) -> bytes:
        """The content of the submission that was written last."""
        files = (self.folder / f"submissions of {self.work}").glob("*.csv")
        return max(files, key=lambda file: file.stat().st_mtime_ns).read_bytes()


def rehearse(options: argparse.Namespace, folder: Path) -> bool:
    """Draw, serve and run all stages; print the tables. Returns True if every stage ended without an error."""
    name, share, started = options.competition, options.share, time.monotonic()
    if not (folder / "archive.zip").is_file():
        draw(name, folder / "raw", share)
        zip_and_remove(folder / "raw", folder / "drawn.zip")
        (folder / "drawn.zip").rename(folder / "archive.zip")
    with zipfile.ZipFile(folder / "archive.zip") as zipped:
        listed = {file.filename: file.file_size for file in zipped.infolist()}
    size = (folder / "archive.zip").stat().st_size
    print(f"drawn: {len(listed):,} files, {size / 1e9:.2f} GB, {time.monotonic() - started:.0f} s", flush=True)
    for earlier in (
        "work",
        "submissions of work",
        "work-kernel",
        "submissions of work-kernel",
        "server",
        "home",
        "logs",
    ):
        shutil.rmtree(folder / earlier, ignore_errors=True)
    recipe, competition, side = RECIPES[name]
    text = PARAMS.format(root=ROOT, recipe=recipe, competition=competition, size=side)
    (folder / "params.yaml").write_text(text)
    step_seconds = load_params(ROOT / recipe).train.batch / V5E_RATE
    (folder / "tiny.py").write_text(f"{PLUGINS}STEP_SECONDS = {step_seconds}\n")
    params = load_params(folder / "params.yaml")
    for each in ("server", "home", "logs"):
        (folder / each).mkdir()
    costs, images = dict[str, Cost](), 0
    with (
        (folder / "archive.zip").open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as archive,  # its slices are no copies: the real zip has 5 GB
        FakeKaggle(folder / "server") as kaggle,
    ):
        kaggle.contests["rehearsal"] = Contest({}, archive=archive)
        job = WorkFolder(folder, {**os.environ, **kaggle.environment(folder / "home"), "TF_CPP_MIN_LOG_LEVEL": "3"})
        costs["curl and unzip"] = curl_and_unzip(folder, job.environment)
        stages = {
            title: arguments
            for title, arguments in STAGES.items()
            if (name == "flowers" or title not in (SLOW_BENCH, SLOW_STEP))
            and (not options.sessions or title in BEFORE_SESSIONS)
        }
        for title, arguments in stages.items():
            costs[title] = job.run(title, *arguments)
            index = next((folder / "work").glob("*/data/index.csv"), None)
            images = len(read_csv(index)) if index else len(listed)
            print(row(title, costs[title], images), flush=True)
            if costs[title].exit_code:
                break
            if title == "prepare":
                code = f"from benchmarks import dress_rehearsal; dress_rehearsal.decode_thumbnails({str(folder)!r})"
                log = folder / "logs" / "thumbnails.txt"
                costs[THUMBNAILS] = measured([sys.executable, "-c", code], job.environment, folder / "work", log)
                print(row(THUMBNAILS, costs[THUMBNAILS], images), flush=True)
        succeeded = not any(cost.exit_code for cost in costs.values())
        print(
            f"\n`python -m benchmarks.dress_rehearsal {name} --share {share:g}`: {images:,} images, zip of "
            f"{size / 1e9:.2f} GB; {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}\n",
            "| stage | seconds | processor seconds | peak memory, GB | files grew by, GB | read, GB | written, GB | ms per image |",
            "|---|---|---|---|---|---|---|---|",
            *(row(title, cost, images) for title, cost in costs.items()),
            sep="\n",
        )
        if succeeded and SLOW_STEP in costs:
            sizes = sizes_of(next((folder / "work").glob("*/data")), params)
            folds = params.prepare.folds
            steps = sizes.train * (folds - 1) // folds // params.train.batch * SLOW_EPOCHS * folds
            (measured_parts,) = json.loads(next((folder / "work").glob("*/bench.json")).read_text()).values()
            compiled = params.train.batch / measured_parts["images_per_second"]["step"]
            outside = 1 - steps * compiled / costs[SLOW_STEP].seconds
            print(
                f"\n{SLOW_STEP}: {steps:,} steps of {1000 * compiled:.0f} ms, of which {1000 * step_seconds:.0f} ms are the wait, "
                f"{outside:.0%} of the time outside them"
            )
        if succeeded and options.kills:
            succeeded = kill_stages(job, costs)
        if succeeded and options.sessions:
            kaggle.contests["rehearsal"].files = stored_files(folder / "archive.zip", archive)
            succeeded = run_in_sessions(job, kaggle.folder, options.sessions, TWO_MEMBERS.format(size=side))
        kaggle.contests.clear()  # no view of the archive remains when it is closed
    return succeeded


def curl_and_unzip(folder: Path, environment: Mapping[str, str]) -> Cost:
    """What the same download costs without any check: curl, unzip, sync."""
    target = folder / "unzipped"
    target.mkdir()
    url, proxy = f"{STORAGE}/archives/rehearsal/archive.zip?{SIGNATURE}", environment["HTTP_PROXY"]
    script = f"curl -sSf --proxy {proxy} -o {target}/a.zip '{url}' && unzip -q {target}/a.zip -d {target} && sync"
    cost = measured(["sh", "-c", script], environment, target, folder / "logs" / "curl.txt")
    shutil.rmtree(target)
    return cost


def decode_thumbnails(folder: str) -> None:
    """Decode each image to the size of the perceptual hash, in threads as the index does, and nothing else."""
    params = load_params(Path(folder, "params.yaml"))
    raw = next(Path(folder, "work").glob("*/raw"))
    rows = adapter_named(params.competition.adapter, params.plugins).rows(raw, settings_of(params))
    with ThreadPoolExecutor() as pool:
        while chunk := list(islice(rows, CHUNK)):
            list(pool.map(lambda row: decode(row.data, LOOK, "squash"), chunk))


def kill_stages(job: WorkFolder, costs: Mapping[str, Cost]) -> bool:
    """Run the main job in another folder, each long stage ended twice before its end. True if the submissions are equal."""
    killed, succeeded = WorkFolder(job.folder, job.environment, "work-killed"), True
    print(
        "\n| stage | seconds | ended after SIGTERM | SIGKILL after | last run | repeated |\n|---|---|---|---|---|---|"
    )
    for title in LONG_STAGES:
        whole = costs[title].seconds
        first = killed.run(f"{title}, SIGTERM", *STAGES[title], stop_after=whole / 3, kind=signal.SIGTERM)
        second = killed.run(f"{title}, SIGKILL", *STAGES[title], stop_after=whole / 3)
        last = killed.run(title, *STAGES[title])
        succeeded &= not last.exit_code
        repeated = first.seconds + second.seconds + last.seconds - whole
        cells = (whole, first.seconds - whole / 3, second.seconds, last.seconds, repeated)
        print(f"| {title} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)
    is_equal = succeeded and job.submission() == killed.submission()
    shutil.rmtree(job.folder / killed.work)
    print(f"\nthe submission after the kills is {'equal' if is_equal else 'NOT EQUAL'}")
    return is_equal


def run_in_sessions(job: WorkFolder, server: Path, minutes: float, members: str) -> bool:
    """Train and predict two members here, then in a kernel, session after session.

    server: folder where the kernels run.  members: overrides of parameters.
    Returns True if the submissions are equal and no fold model was trained twice.
    """
    for title in ("train, TensorFlow", "predict", "blend"):
        verb, *arguments = STAGES[title]
        cost = job.run(f"two members, {title}", verb, *arguments, "--set", members)
        print(f"two members, {title}: {cost.seconds:.1f} s", flush=True)
        if cost.exit_code:
            return False
    shutil.rmtree(job.folder / job.work)  # its caches would leave no room for those of the kernels
    remote = WorkFolder(job.folder, job.environment, "work-kernel")
    sets = f"kernel.machine='' kernel.devices=1 kernel.internet=false kernel.pause=0.5 kernel.hours={minutes / 60} kernel.reserve=0.01"
    for title in ("download", "prepare"):
        remote.run(title, *STAGES[title])
    print(
        f"\n| session of {minutes:g} min | seconds | fold models trained | and predicted | seconds without them | output, GB |\n"
        "|---|---|---|---|---|---|",
        flush=True,
    )
    number, trained, predicted, expected = 0, 0, 0, 2 * load_params(job.folder / "params.yaml").prepare.folds
    while predicted < expected:
        number += 1
        cost = remote.run(f"session {number}", "kernel", "--set", f"{members} {sets}")
        # Imported predictions are counted by their manifests; trainings by their lines, because a second one replaces the manifest.
        lines = (job.folder / "logs" / f"{remote.work} session {number}.txt").read_text()
        trainings = re.findall(r"train \w+ fold \d+: .* (\d+) s$", lines, re.MULTILINE)
        prediction_seconds = dict(re.findall(r"predict (\w+): [1-9]\d* of \d+ fold models .*?, (\d+) s,", lines))
        before = predicted
        predicted = len(list((job.folder / remote.work).glob("*/members/*/*/fold*/views/*/manifest.json")))
        others = cost.seconds - sum(map(int, [*trainings, *prediction_seconds.values()]))
        (run,) = server.glob(f"*_v{number}")
        cells = (len(trainings), predicted - before, f"{others:.0f}", f"{bytes_below(run / 'working') / 1e9:.2f}")
        print(f"| {number} | {cost.seconds:.1f} | {' | '.join(map(str, cells))} |", flush=True)
        if cost.exit_code or (not trainings and predicted == before and number > 1):
            return False
        trained += len(trainings)
        shutil.rmtree(run / "input")  # a machine of Kaggle is thrown away
    is_equal = not remote.run("blend", "blend", "--set", members).exit_code and job.submission() == remote.submission()
    print(f"\n{trained} of {expected} fold models trained; the submission is {'equal' if is_equal else 'NOT EQUAL'}")
    return is_equal and trained == expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("competition", choices=RECIPES)
    parser.add_argument("--share", type=float, default=1.0, help="of the rows of each class")
    then = parser.add_mutually_exclusive_group()
    then.add_argument("--kills", action="store_true", help="then kill each long stage twice")
    then.add_argument("--sessions", type=float, default=0.0, help="minutes of a session of the kernel")
    parser.add_argument("--keep", type=Path, help="a folder for all files, which draws once; a temporary one otherwise")
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        return 0 if rehearse(options, options.keep) else 1
    with tempfile.TemporaryDirectory() as folder:
        return 0 if rehearse(options, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())

"""What a second machine and a warm process are worth: python -m benchmarks.cluster [--folds 6] [--epochs 20]

Real Ray nodes on loopback addresses, each pinned to one core by taskset, and digits with 2 members. In one run:

- one node trains 2 members x FOLDS fold models, then two nodes train the same; the ratio of their times, from the first
  connection to the last result, starts of processes included;
- the fold models of one member on a node, timed at home by the intervals between their arrivals: the second and later ones
  relative to the seconds that the process spent on training and scoring them (manifest).

Starting processes takes a constant time, so fold models of a few seconds show less than longer ones: state enough epochs.
The machine must be quiet: two nodes share its disk and memory. Needs Linux with two cores and goldfold[cluster].
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cluster")]

from ray_nodes import RayCluster  # noqa: E402
from stages import Workspace, new_workspace  # noqa: E402

from competition.files.manifest import read_manifest  # noqa: E402

ADDRESSES = ("127.0.0.2", "127.0.0.3")


def prepared(folder: Path, folds: int, epochs: int) -> Workspace:
    workspace = new_workspace(folder)
    text = workspace.params.read_text().replace("folds: 3", f"folds: {folds}").replace("epochs: 4", f"epochs: {epochs}")
    workspace.params.write_text(text.replace("image_size: 16", "image_size: 32"))
    for stage in ("download", "prepare", "resolve"):
        workspace.do(stage)
    return workspace


def seconds_of(workspace: Workspace, nodes: int) -> tuple[float, list[float], dict[str, float]]:
    """(seconds of the whole, arrival of each result in seconds, name -> seconds of its training) on that many nodes."""
    shutil.rmtree(workspace.work / "members", ignore_errors=True)
    cluster = RayCluster(workspace.folder)
    arrivals, trained = [], {}
    try:
        for core, address in enumerate(ADDRESSES[:nodes]):
            cluster.start(address, prefix=("taskset", "-c", str(core)))
        started = time.monotonic()
        command = workspace.command("train", "--cluster", cluster.address)
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.match(r"train (\w+) fold (\d+): .* held-out rows", line):
                arrivals.append(time.monotonic() - started)
                manifest = read_manifest(workspace.fold(match[1], int(match[2])) / "manifest.json")
                assert manifest is not None
                trained[f"{match[1]} fold {match[2]}"] = float(manifest.result["seconds"])
        assert process.wait() == 0
        return time.monotonic() - started, arrivals, trained
    finally:
        cluster.stop()
        shutil.rmtree(workspace.folder / f"home-{ADDRESSES[0]}", ignore_errors=True)
        shutil.rmtree(workspace.folder / f"home-{ADDRESSES[1]}", ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workspace = prepared(Path(folder) / "workspace", options.folds, options.epochs)
        one, arrivals, trained = seconds_of(workspace, 1)
        gaps = [later - earlier for earlier, later in pairwise(arrivals)]
        names = list(trained)
        same_member = [n for n in range(1, len(names)) if names[n].split()[0] == names[n - 1].split()[0]]
        warm = [gaps[n - 1] for n in same_member]
        pure = [trained[names[n]] for n in same_member]
        work = sum(trained.values())
        print(
            f"one node: {one:.0f} s for {len(names)} fold models, {work:.0f} s of them training, {one - work:.0f} s to start Ray's "
            f"tasks, two processes and to compile; load {os.getloadavg()[0]:.1f}"
        )
        print(
            f"warm fold models: {sum(warm):.0f} s between arrivals, {sum(pure):.0f} s trained: {sum(warm) / sum(pure):.2f}"
        )
        two, _, trained = seconds_of(workspace, 2)
        print(
            f"two nodes: {two:.0f} s, {two / one:.2f} of one node; {sum(trained.values()) / 2:.0f} s of training on each if they "
            f"were equal; load {os.getloadavg()[0]:.1f}"
        )
        for member in sorted({name.split()[0] for name in trained}):
            seconds = [trained[name] for name in trained if name.split()[0] == member]
            print(f"  {member}: {sum(seconds):.0f} s, the longest fold model {max(seconds):.0f} s")


if __name__ == "__main__":
    main()

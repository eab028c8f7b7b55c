"""Peak memory of training: with one fold and all, with few images and many, decoded images on disk.

    python -m benchmarks.memory --source photos.zip           # photos are repeated up to the required number

Prints the largest resident memory (ru_maxrss) of one process for each case, its value before the first image was read,
and the ratio to the case of one fold and few images.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.photos import ROOT, Setup, add_arguments, describe, load, member_of, setup_of, write


def peak(setup: Setup, folder: Path, train_folds: int) -> dict[str, float]:
    """Resident memory in megabytes, before the first image is read and at its peak."""
    from competition.config.params_file import load_params
    from competition.training.device import open_device
    from competition.training.fold_rows import FoldRows
    from competition.training.trainer import Trainer

    member, device = member_of(setup), open_device(load_params(ROOT / "params.yaml").device)
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    images, classes = load(setup, folder, ram=0)
    trainer = Trainer(FoldRows(member, images, classes), "accuracy", device, setup.predict_batch)
    for k in range(train_folds):
        trainer.train_to_end(k, member.train)
        trainer.held_out(k)
    peak_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"before": memory_before * 1024 / 1e6, "peak": peak_memory * 1024 / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--few", type=int, default=2_000)
    parser.add_argument("--many", type=int, default=8_000)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--train-folds", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    setup = setup_of(options)
    if options.child:
        print(json.dumps(peak(setup, Path(options.child), options.train_folds)))
        return
    peaks: dict[tuple[int, int], float] = {}
    for images in (options.few, options.many):
        with TemporaryDirectory(prefix="benchmark") as folder:
            write(replace(setup, images=images), Path(folder))
            for folds in (1, setup.folds):
                command = [sys.executable, "-m", "benchmarks.memory", *sys.argv[1:]]
                command += ["--child", folder, "--train-folds", str(folds)]
                environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
                completed = subprocess.run(
                    command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
                )
                memory = json.loads(completed.stdout.splitlines()[-1])
                peaks[images, folds] = memory["peak"]
                ratio = memory["peak"] / peaks[options.few, 1]
                print(
                    f"{images:6,} images, {folds} fold{'s' * (folds > 1)}: {memory['peak']:,.0f} MB at the peak "
                    f"({memory['before']:,.0f} before the first image), {ratio:.2f} x",
                    flush=True,
                )
    print(
        f"RESULT: peak memory of {describe(setup, options.few)}: {peaks[options.few, 1]:,.0f} MB with one fold, "
        f"{peaks[options.few, setup.folds]:,.0f} MB with {setup.folds}; on {options.many:,} images "
        f"{peaks[options.many, 1]:,.0f} and {peaks[options.many, setup.folds]:,.0f} MB"
    )


if __name__ == "__main__":
    main()

"""Overhead of training all folds of a member: wall time / (folds x steps x median step time).

    python -m benchmarks.folds_time --source photos.zip       # or no source: generated images

The wall time covers decoding the images, building and compiling the member, training every fold and scoring its held-out
rows after the last epoch: what `make train` does once TensorFlow is imported.
"""

import argparse
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.photos import ROOT, add_arguments, describe, load, member_of, setup_of, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    setup = setup_of(parser.parse_args())
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from competition.config.params_file import load_params
    from competition.images.batches import steps_per_epoch
    from competition.training.device import open_device
    from competition.training.fold_rows import FoldRows
    from competition.training.trainer import Trainer

    with TemporaryDirectory(prefix="benchmark") as folder:
        write(setup, Path(folder))
        device = open_device(load_params(ROOT / "params.yaml").device)
        started = time.perf_counter()
        images, classes = load(setup, Path(folder), ram=2 * 10**9)
        member = member_of(setup)
        trainer = Trainer(FoldRows(member, images, classes), "accuracy", device, setup.predict_batch)
        engine: Any = trainer.engine
        train, calls = engine.train, list[tuple[int, float]]()  # steps and seconds of every call

        def timed(batches: Any, rates: np.ndarray, *arguments: Any) -> float:
            started = time.perf_counter()
            loss = train(batches, rates, *arguments)
            calls.append((len(rates), time.perf_counter() - started))
            return float(loss)

        engine.train = timed
        steps = 0
        for k in range(setup.folds):
            trained = trainer.train_to_end(k, member.train, score_epochs=False)
            trainer.out_of_fold(k, trained)
            steps += setup.epochs * steps_per_epoch(len(trainer.rows.plan(k, member.train).rows), engine.batch)
        wall = time.perf_counter() - started
    step = float(np.median([seconds / count for count, seconds in calls]))
    assert steps == sum(count for count, _ in calls)
    print(
        f"RESULT: {describe(setup, len(images.ids))}: {wall:.0f} s, {wall / (steps * step):.3f} times its {steps:,} steps of "
        f"{step * 1000:.0f} ms (median)"
    )


if __name__ == "__main__":
    main()

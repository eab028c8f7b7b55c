"""CPU seconds and peak memory of a blend's choices at scale. python -m benchmarks.scale [--case small large] [--folds 5]

small: 20,000 rows x 1,000 classes x 4 members x 4 views; target: 150 CPU seconds, 1.5 GB.
large: 200,000 rows x 1,000 classes x 10 members, one view; target: 6 GB.

The predictions are generated block by block into files like those of `make predict`, and memory-mapped from there. Each case runs
in a process of its own, so that its peak memory is its own.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from competition.config.params_file import load_params
from competition.ensemble.honest_score import fit_and_score_chain
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested_cross_fit import OofRows
from competition.ensemble.settings import chain_settings
from competition.ensemble.stored_predictions import ViewPredictions

BLOCK = 2_000  # rows generated at once


@dataclass(frozen=True, slots=True)
class Case:
    rows: int
    classes: int
    members: int
    views: int
    seconds: float  # CPU seconds allowed; 0 = no target
    gigabytes: float  # peak memory allowed


CASES = {"small": Case(20_000, 1_000, 4, 4, 150.0, 1.5), "large": Case(200_000, 1_000, 10, 1, 0.0, 6.0)}


def write_predictions(case: Case, folder: Path) -> None:
    """labels.npy, and for each member a file of predictions with accuracies around 0.8."""
    labels = np.random.default_rng(0).permutation(np.arange(case.rows) % case.classes)
    np.save(folder / "labels.npy", labels)
    ids, names = np.array([f"r{n:07}" for n in range(case.rows)]), tuple(["identity", "a", "b", "c"][: case.views])
    bank = np.random.default_rng(1).standard_normal(2 * BLOCK * case.classes, np.float32)
    for member in range(case.members):
        probs = np.empty((case.rows, case.views, case.classes), np.float16)
        for start in range(0, case.rows, BLOCK):
            block = slice(start, start + BLOCK)
            _fill_block(probs[block], labels[block], start, member, bank)
        ViewPredictions(ids, names, probs).save(folder / f"m{member:02}.npz")


def _fill_block(out: np.ndarray, labels: np.ndarray, start: int, member: int, bank: np.ndarray) -> None:
    """Members share the evidence of a row, views share the noise of their member.  bank: precomputed normal noise."""
    positions, shape = np.arange(len(labels)), out.shape[::2]
    shared, own = np.random.default_rng([0, start]), np.random.default_rng([1, start, member])

    def normal(rng: np.random.Generator) -> np.ndarray:
        first = int(rng.integers(len(bank) - shape[0] * shape[1]))
        return bank[first : first + shape[0] * shape[1]].reshape(shape)

    evidence = normal(shared).copy()
    evidence[positions, labels] += shared.gamma(6.0, 1.2, len(labels)).astype(np.float32)
    evidence += np.float32(0.5 + 0.03 * member) * normal(own)
    for view in range(out.shape[1]):
        logits = evidence + np.float32(0.3) * normal(own) if view else evidence
        logits = np.float32(2.0) * (logits - logits.max(1, keepdims=True))
        np.exp(logits, out=logits)
        logits /= logits.sum(1, keepdims=True)
        out[:, view] = logits


def run_case(folder: Path, folds: int) -> None:
    """Fit the default blend with all its choices; print CPU seconds, gigabytes, wall seconds and the honest score."""
    params = load_params(Path(__file__).resolve().parents[1] / "params.yaml")
    settings, honest = chain_settings(params, METRICS["macro_f1"]), params.honest
    labels = np.load(folder / "labels.npy")
    usage_before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    views = {file.stem: ViewPredictions.load(file, mapped=True) for file in sorted(folder.glob("m*.npz"))}
    for member in views.values():
        member.release()
    rows = OofRows(views, labels, np.arange(len(labels)) % folds)
    result = fit_and_score_chain(rows, settings, honest)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = usage.ru_utime + usage.ru_stime - usage_before.ru_utime - usage_before.ru_stime
    gigabytes = usage.ru_maxrss * 1024 / 1e9
    print(f"{seconds:.1f} {gigabytes:.2f} {time.perf_counter() - start:.1f} {result.honest.value:.4f}")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    arguments.add_argument("--folds", type=int, default=5)
    arguments.add_argument("--folder", type=Path, help="with predictions already generated: run only this case")
    options = arguments.parse_args()
    if options.folder:
        run_case(options.folder, options.folds)
        return 0
    verdicts = []
    for name in options.case:
        case = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            write_predictions(case, Path(folder))
            command = [sys.executable, "-m", "benchmarks.scale", "--folder", folder, "--folds", str(options.folds)]
            fields = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        seconds, gigabytes, wall, score = map(float, fields)
        verdicts.append(gigabytes <= case.gigabytes and (not case.seconds or seconds <= case.seconds))
        print(
            f"RESULT: {name}: {case.rows:,} rows x {case.classes:,} classes x {case.members} members x {case.views} views, "
            f"{options.folds} folds: {seconds:.0f} CPU s{f' (target {case.seconds:.0f})' if case.seconds else ''}, "
            f"{gigabytes:.2f} GB (target {case.gigabytes:g}), {wall:.0f} s on this machine, honest macro-F1 {score:.4f}: "
            f"{'holds' if verdicts[-1] else 'DOES NOT HOLD'}",
            flush=True,
        )
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

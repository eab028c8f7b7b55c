"""Tiny trainings and predictions by each engine, and a blend, that are compared with recorded results.

    python tests/reference_results.py     # record them in tests/reference_results.json, after a version was raised

They show that results changed; the tolerance covers what processors and versions of libraries differ in.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from competition.ensemble import view_transforms
from competition.ensemble.metrics import METRICS
from competition.ensemble.nested_cross_fit import OofRows

RECORDED = Path(__file__).with_suffix(".json")
TOLERANCE = 2e-3  # of probabilities and losses; rounding differs by 1e-5 between processors after these few steps
BACKENDS = ("tensorflow", "jax")
# Kind (training | prediction | features | heads | blend) -> case -> numbers.
Results = dict[str, dict[str, list[float]]]

AUGMENTED = {
    "flip": "horizontal", "shift": 0.1, "zoom": 0.1, "rotate": 10.0, "brightness": 0.1, "contrast": 0.1, "saturation": 0.2,
    "erase": 0.5, "mixup": 0.4, "crop": 0.8, "label_smoothing": 0.1, "dropout": 0.2,
}  # fmt: skip
STEP_OPTIONS = {
    "accumulate": 2, "ema": 0.8, "focal_gamma": 1.5, "layer_decay": 0.8, "patience": 2, "patience_share": 0.3,
    "class_weights": "balanced", "sampling": "balanced", "cutmix": 1.0, "freeze_epochs": 1,
}  # fmt: skip
VIEWS = ("identity", "flip_lr", "shift_up", "rot90")


def results_of_engine() -> Results:
    """Results of the backend of Keras: losses and out-of-fold probabilities of a few training runs; probabilities of views."""
    from builders import CLASSES, member, network_trainer, params, pixels_of

    from competition.config.params import Head
    from competition.ensemble.stored_predictions import ViewPredictions
    from competition.input_pipeline.labelled_images import Images
    from competition.prepare.targets import SINGLE, Targets
    from competition.training.device import open_device
    from competition.training.features import compute_features, feature_engine
    from competition.training.fold_rows import FoldRows
    from competition.training.network_trainer import NetworkTrainer

    count = 59
    labels, ids = np.arange(count) % CLASSES, np.array([f"i{n:02}" for n in range(count)])
    images = Images(ids, pixels_of(labels), labels, np.arange(count) // CLASSES % 3, np.arange(count) != 4)
    device = open_device(params().device)

    is_labelled = images.folds != 0
    probs = np.full((is_labelled.sum(), 1, CLASSES), 1 / CLASSES, np.float32)
    soft_labels = {0: ViewPredictions(ids[is_labelled], ("identity",), probs)}

    def trainer_of(targets: Targets, metric: str, **train: object) -> NetworkTrainer:
        recipe = member(batch=12, epochs=3, **train)
        student = replace(recipe, teacher=("other",), teacher_weight=0.3) if targets is SINGLE else recipe
        classes = 1 if targets.kind == "regression" else CLASSES
        rows = FoldRows(student, images, classes, targets, soft_labels if student.teacher else None)
        return network_trainer(rows, metric, device)

    cases = {"augmented": trainer_of(SINGLE, "macro_f1", **AUGMENTED)}
    if device.backend == "tensorflow":  # the same code on both, and JAX compiles slowly
        cases["step options"] = trainer_of(SINGLE, "log_loss", **STEP_OPTIONS)
        cases["several labels"] = trainer_of(Targets("multi", np.eye(CLASSES)[:, ::-1] > 0), "multilabel_macro_f1")
        cases["regression"] = trainer_of(Targets("regression", np.array([1.0, 2.0, 4.0])), "rmse")
    training = {}
    for name, trainer in cases.items():
        trained = trainer.train_to_end(0, trainer.member.train)
        losses = [epoch.loss for epoch in trained.history]
        training[name] = numbers(losses, trainer.out_of_fold(0, trained).probs[:6])
    trainer, random = cases["augmented"], np.random.default_rng(0)
    weights = {
        name: random.normal(1.0 if value.ndim == 1 else 0.0, 0.2, value.shape).astype(np.float32)
        for name, value in sorted(trainer.engine.weights().items())
    }
    views = trainer.predict(weights, images, np.arange(6), VIEWS)
    results = {"training": training, "prediction": {"views": numbers(views.probs)}}
    if device.backend == "tensorflow":
        network = replace(member(), architecture="MobileNet", image_size=32, head=Head("linear"))
        engine = feature_engine(network, device, 8)
        pixels = replace(images, pixels=pixels_of(labels, size=32))
        features = compute_features(engine, pixels, np.arange(3), [view_transforms.VIEWS["flip_lr"]])
        results["features"] = {"two stages": numbers(features[..., ::12])}
    return results


def results_of_blend() -> Results:
    """Results of a blend of three simulated members with three views each: chosen weights, probabilities and honest score.

    The members are of unequal quality (the last one misleads), so that equal weights lose and the bags have a say.
    """
    from builders import params

    from competition.ensemble.chain import apply_chain
    from competition.ensemble.honest_score import fit_and_score_chain
    from competition.ensemble.settings import chain_settings
    from competition.ensemble.stored_predictions import ViewPredictions

    random, rows = np.random.default_rng(0), 240
    labels, folds = random.integers(0, 3, rows), np.arange(rows) % 4
    ids = np.array([f"i{n:03}" for n in range(rows)])
    members = {}
    for name, signal in {"a": 1.2, "b": 1.0, "c": -0.5}.items():
        logits = signal * np.eye(3)[labels][:, None] + random.normal(0, 1.5, (rows, 3, 3))
        probs = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
        members[name] = ViewPredictions(ids, ("identity", "flip_lr", "shift_up"), probs.astype(np.float16))
    settings, oof = params(), OofRows(members, labels, folds)
    result = fit_and_score_chain(oof, chain_settings(settings, METRICS["macro_f1"], True), settings.honest)
    weights = [result.chain.blend.weights.get(name, 0.0) for name in members]
    views = [weight for policy in result.chain.policies.values() for weight in policy.values()]
    probs, decided = apply_chain(result.chain, members, np.arange(6))
    return {
        "blend": {
            "weights of members and views": numbers(weights, views),
            "probabilities": numbers(probs, decided),
            "honest score": numbers([result.honest.value, result.chosen_on], result.cross_fitted.probs[:3]),
            "best member": numbers([result.best.value]),
        }
    }


def results_of_heads() -> Results:
    """Probabilities of heads of all kinds that were fitted to random features of two views."""
    from competition.config.params import Head
    from competition.training.heads import HeadRows, fit_best_head, head_outputs, inner_parts_of, probabilities_of

    random, count = np.random.default_rng(0), 96
    labels = random.integers(0, 3, count)
    features = (np.eye(3)[labels] @ random.normal(0, 1.2, (3, 12)) + random.normal(0, 1, (2, count, 12))).astype("f4")
    targets = {
        "single": labels,
        "multi": np.eye(3)[labels][:, ::-1] + np.eye(3)[(labels + 1) % 3] > 0,
        "regression": labels + 0.5,
    }
    parts = inner_parts_of(labels, np.arange(count), 0)
    cases = {}
    for kind in ("linear", "rbf", "mlp", "neighbours"):
        for target, values in targets.items() if kind == "linear" else [("single", labels)]:
            rows = HeadRows(features, values, np.ones(count), 1 if target == "regression" else 3, target)
            head = fit_best_head(Head(kind), rows, parts, 0)
            outputs = head_outputs(head.arrays, features[0, :6], target)
            cases[f"{kind}, {target}"] = numbers(probabilities_of(outputs, target))
    return {"heads": cases}


def numbers(*parts: object) -> list[float]:
    """All numbers of some arrays, rounded to what is recorded."""
    return [round(float(value), 5) for part in parts for value in np.asarray(part, np.float64).ravel()]


def computed(backend: str) -> Results:
    """The results of one engine, or of heads and blend ("ensemble"), from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        environment = {"KERAS_BACKEND": backend} if backend in BACKENDS else {}
        environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        environment |= {"PYTHONPATH": os.pathsep.join([str(RECORDED.parents[1]), str(RECORDED.parent)])}
        command = [sys.executable, str(Path(__file__)), backend, str(file)]
        process = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr[-3000:]
        results: Results = json.loads(file.read_text())
    return results


def changed_cases(results: Results, recorded: Results) -> list[str]:
    """The kinds (training, prediction, features, heads, blend) whose results differ from the recorded ones."""

    def is_same(values: list[float], before: list[float]) -> bool:
        return len(values) == len(before) and np.allclose(values, before, 0, TOLERANCE)

    def is_changed(cases: dict[str, list[float]], before: dict[str, list[float]]) -> bool:
        return cases.keys() != before.keys() or not all(is_same(values, before[case]) for case, values in cases.items())

    return [kind for kind, cases in results.items() if is_changed(cases, recorded.get(kind, {}))]


def versions() -> dict[str, int]:
    """Kind -> the version that is raised when its results change."""
    from competition.ensemble.chain import BLEND
    from competition.training.versions import FEATURES, HEADS, PREDICTION, TRAINING

    return {"training": TRAINING, "prediction": PREDICTION, "features": FEATURES, "heads": HEADS, "blend": BLEND}


def record() -> None:
    """Record the results of all engines. Refuses changed results of an equal version."""
    recorded = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {"versions": {}}
    content: dict[str, object] = {"versions": versions()}
    for backend in (*BACKENDS, "ensemble"):
        content[backend] = results = computed(backend)
        for kind in changed_cases(results, recorded.get(backend, {})):
            if recorded["versions"].get(kind) == versions()[kind]:
                sys.exit(f"the results of {kind} on {backend} changed; raise its version before they are recorded")
    RECORDED.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        results = results_of_engine() if sys.argv[1] in BACKENDS else results_of_heads() | results_of_blend()
        Path(sys.argv[2]).write_text(json.dumps(results))
    else:
        sys.path.insert(0, str(RECORDED.parents[1]))
        record()

"""The next steps are ranked by what they can gain, and every number says where it comes from."""

import base64
import io
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
from builders import ROOT, competition, numbered
from PIL import Image

from competition.config.params import ExternalFiles
from competition.config.params_file import load_params
from competition.ensemble.metrics import METRICS
from competition.ensemble.significance import Difference
from competition.files.manifest import Manifest
from competition.prepare.prepared import Prepared
from competition.report.classes import label_issues_section
from competition.report.members import TrainedFold
from competition.report.next_steps import blend_steps, label_steps, larger_images, open_steps, training_steps
from competition.report.page import Text

NAMES = ("rose", "tulip", "aster")


def rows() -> tuple[np.ndarray, ...]:
    """30 rows: three roses are taken for tulips, one aster for a rose."""
    labels = np.repeat([0, 1, 2], 10)
    predicted = labels.copy()
    predicted[:3], predicted[29] = 1, 0
    return np.array([f"i{n}" for n in range(30)]), labels, predicted, np.eye(3)[predicted]


def model(scores: list[float], losses: list[float], fold: int) -> TrainedFold:
    history = pd.DataFrame(
        {"epoch": range(1, len(scores) + 1), "loss": 1.0, "held_out": scores, "held_out_loss": losses}
    )
    return TrainedFold(fold, Manifest("", {}, {}, {}, {}), scores[-1], history, 1.0)


def test_the_pair_with_most_confusions_comes_first_and_its_gain_is_that_of_perfect_rows(tmp_path: Path) -> None:
    _, labels, predicted, _ = rows()
    first, second, look = label_steps(rows(), METRICS["macro_f1"], NAMES, tmp_path / "none.csv", False)
    assert first.what == "tell rose and tulip apart" and second.what == "tell rose and aster apart"
    better = predicted.copy()
    better[:3] = 0
    macro_f1 = METRICS["macro_f1"].evaluate
    assert first.at_most and first.gain == macro_f1(labels, better, 3) - macro_f1(labels, predicted, 3)
    assert look.what == "look for wrong labels" and look.gain is None


def test_doubtful_labels_gain_at_most_what_their_errors_cost(tmp_path: Path) -> None:
    issues = tmp_path / "label_issues.csv"
    issues.write_text("id,label,suggested\ni0,rose,tulip\ni5,rose,aster\n")  # i5 is predicted right: no gain
    step = label_steps(rows(), METRICS["macro_f1"], NAMES, issues, False)[-1]
    assert step.basis == "1 doubtful label predicted otherwise" and 0 < step.gain < 0.05


def test_curves_that_still_rise_and_curves_that_overfit_are_told_apart() -> None:
    rising = [model([0.5, 0.6 + n / 1000, 0.7], [1.0, 0.9, 0.8], n) for n in range(4)]
    (longer,) = training_steps({"cnn": rising}, METRICS["accuracy"])
    assert longer.what == "train cnn longer" and 0.09 < longer.gain < 0.11
    worse = [model([0.5, 0.7, 0.65], [1.0, 0.6, 0.8 + n / 100], n) for n in range(4)]
    (overfits,) = training_steps({"cnn": worse}, METRICS["accuracy"])
    assert overfits.what == "cnn overfits after epoch 2" and np.isclose(overfits.gain, 0.05)
    by_loss = [model([0.5, 0.7, 0.72], [1.0, 0.6, 0.8 + n / 100], n) for n in range(4)]
    (regularise,) = training_steps({"cnn": by_loss}, METRICS["accuracy"])
    assert regularise.gain is None and "epochs" not in regularise.command  # fewer epochs would lose
    flat = [model([0.5, 0.7, 0.7 + 0.01 * (-1) ** n], [1.0, 0.6, 0.6], n) for n in range(4)]
    assert training_steps({"cnn": flat}, METRICS["accuracy"]) == []


def test_equal_weights_are_a_step_only_where_they_are_better_by_more_than_noise() -> None:
    def scores(value: float, members: int = 2) -> dict[str, object]:
        over = Difference(value, 0.002, value - 0.004, value + 0.004, 20, 5, 15, swap_p=0.001)
        return {"members": dict.fromkeys(range(members)), "honest_rows": 300, "over_equal": asdict(over)}

    (step,) = blend_steps(scores(-0.01))
    assert step.gain == 0.01 and "+0.0100 ± 0.0020, a gain" in step.basis and "methods=[equal]" in step.command
    assert blend_steps(scores(0.01)) == blend_steps(scores(-0.001)) == blend_steps(scores(-0.01, members=1)) == []


def prepared(side: int) -> Prepared:
    index = pd.DataFrame(
        {"id": ["a", "b", "c"], "part": "train", "width": [side, side + 9, 0], "height": [side, side, 0]}
    )
    return Prepared(Path(), competition(NAMES, metric="macro_f1"), index, "d")


def test_larger_images_are_advised_only_where_the_images_are_larger_than_the_networks_read(tmp_path: Path) -> None:
    params = load_params(ROOT / "params.yaml")  # members of 32 and 16 pixels
    assert larger_images(params, prepared(33)) and not larger_images(params, prepared(32))
    assert not larger_images(replace(params, members={}), prepared(500))
    for has_larger in (True, False):
        step = label_steps(rows(), METRICS["macro_f1"], NAMES, tmp_path / "none.csv", has_larger)[0]
        assert ("a larger image_size" in step.command) == has_larger


def test_members_that_are_trained_elsewhere_are_not_advised_to_train(tmp_path: Path) -> None:
    params = load_params(ROOT / "params.yaml")
    external = {name: ExternalFiles(f"{name}.csv", ("test.csv",)) for name in ("vit", "swin")}
    own = open_steps(params, prepared(32), {"cnn": []}, [], {}, False)
    assert {step.command.split()[1] for step in own} == {"train", "tune", "noise"}
    assert open_steps(replace(params, members={}, external=external), prepared(32), {}, [], {}, False) == []


def test_the_noise_of_each_trained_member_is_measured_until_all_have_a_spread() -> None:
    params = load_params(ROOT / "params.yaml")
    first, second = [name for name, member in params.members.items() if member.head is None][:2]

    def commands(*measured: str) -> list[str]:
        return [s.command for s in open_steps(params, prepared(32), {}, [], dict.fromkeys(measured, 0.01), True)]

    assert f"make noise MEMBER={first}" in commands() and f"make noise MEMBER={second}" in commands(first)
    assert not any("noise" in command for command in commands(*params.members))


ISSUES = "id,label,suggested,label_probability,suggested_probability\n"


def test_doubtful_labels_are_pictures_of_their_own_rows_with_both_classes_and_probabilities(tmp_path: Path) -> None:
    index = pd.DataFrame({"id": ["a", "-b", "c"], "part": "train"})
    data, file = Prepared(tmp_path, competition(NAMES), index, "d"), tmp_path / "label_issues.csv"
    file.write_text(f"{ISSUES}c,rose,tulip,0.1,0.9\nremoved,rose,tulip,0.2,0.8\n'-b,aster,rose,0.21,0.5\n")
    text, sheet = label_issues_section(file, data, numbered(3)).blocks
    assert text.lines == ["2 doubtful labels by the last `make label-issues`, the most doubtful first."]
    assert [tile.lines for tile in sheet.tiles] == [
        ["is rose 0.10", "✕ tulip 0.90", "c"],
        ["is aster 0.21", "✕ rose 0.50", "-b"],
    ]
    for tile, row in zip(sheet.tiles, (2, 1)):
        with Image.open(io.BytesIO(base64.b64decode(tile.address.partition(",")[2]))) as image:
            assert image.getpixel((0, 0)) == (row, row, row)  # image n has the value n in all pixels
    without = label_issues_section(file, data, None).blocks[1]
    assert [tile.address for tile in without.tiles] == ["", ""] and "No pictures" in without.note


def test_a_cut_list_of_doubtful_labels_says_where_all_are(tmp_path: Path) -> None:
    issues = tmp_path / "label_issues.csv"
    for number, words in (
        (0, "0 doubtful labels by the last `make label-issues`."),
        (15, "15 doubtful labels by the last `make label-issues`, the most doubtful first."),
        (21, "21 doubtful labels by the last `make label-issues`; here the 15 most doubtful, all in label_issues.csv."),
    ):
        issues.write_text(ISSUES + "a,rose,tulip,0.1,0.9\n" * number)
        section = label_issues_section(issues, prepared(32), None)
        assert section is not None and section.blocks[0] == Text([words])
        assert len(section.blocks) == (2 if number else 1)

"""The examples of docs/plugins.md, copied into one file, through the real stages."""

import re
from pathlib import Path

from builders import ROOT
from stages import new_workspace

STAGES = ("download", "prepare", "resolve", "train", "predict", "blend", "report", "grade")
PARAMS = f"""
extends: {ROOT}/params.yaml
plugins: my_plugins.py
competition: {{name: small, adapter: png_digits, metric: balanced_accuracy}}
prepare: {{folds: 2}}
train: {{epochs: 10, batch: 50, learning_rate: 0.02, augment: {{blot: 0.1, greyscale: 0.1, dimmed: 0.2, noise: 0.01}}}}
members:
  tiny: {{architecture: tiny, image_size: 16, alpha: 1.0, weights: none}}
predict: {{batch: 100, views: [identity, inverted, inverted+shift_up]}}
policy: {{rounds: 2}}
blend: {{rounds: 3, bags: 2}}
honest: {{resamples: 50}}
"""


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_every_kind_of_plugin_works_in_every_stage_and_a_change_repeats_only_what_uses_it(tmp_path: Path) -> None:
    workspace, plugins = new_workspace(tmp_path, PARAMS), tmp_path / "my_plugins.py"
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(examples) == 6
    plugins.write_text("\n\n".join(examples))
    output = workspace.do_in_one_process(*STAGES)
    words = ("450 train, 150 test, 10 classes; metric balanced_accuracy", "3 views of 2 fold models", "private 0.")
    assert [word for word in (*words, "honest balanced_accuracy 0.") if word not in output] == []
    first = workspace.scores
    assert first["metric"] == "balanced_accuracy" and first["honest"] > 0.2
    assert 0.005 < first["standard_error"] < 0.05
    assert len((tmp_path / "epochs.txt").read_text().splitlines()) == 20  # ten epochs of two fold models
    assert workspace.ledger()[0]["metric"] == "balanced_accuracy"

    edit(plugins, "for label in np.unique(labels)])", "for label in np.unique(labels)]) / 2")
    output = workspace.do_in_one_process("train", "blend")
    assert "tiny: folds 0, 1 current" in output and "blend: current" not in output
    assert workspace.scores["honest"] == first["honest"] / 2
    edit(plugins, "return 255.0 - images", "return 254.0 - images")
    assert "predict tiny: on 1 x cpu; 3 views of 2 fold models" in workspace.do("predict")

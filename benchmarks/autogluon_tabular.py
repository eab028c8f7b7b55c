"""AutoGluon Tabular on features: an alternative of benchmarks.score_per_hour, in an environment of its own (it needs pandas < 3).

    python -m venv ag && ag/bin/pip install "autogluon.tabular[lightgbm,xgboost,catboost]==1.6.3"
    ag/bin/python benchmarks/autogluon_tabular.py features.npz SECONDS

features.npz: train (n, F) and test (m, F) float32, labels (n,) int. Prints the labels of the m rows as JSON, on the last line.
SECONDS: AutoGluon's time_limit.
"""

import json
import sys
import tempfile

import numpy as np
import pandas as pd
from autogluon.tabular import TabularPredictor


def main() -> None:
    stored, seconds = np.load(sys.argv[1]), float(sys.argv[2])
    train = pd.DataFrame(stored["train"]).add_prefix("f")
    train["label"] = stored["labels"]
    with tempfile.TemporaryDirectory() as folder:
        predictor = TabularPredictor(
            "label", problem_type="multiclass", eval_metric="f1_macro", path=folder, verbosity=1
        )
        predictor.fit(train, time_limit=seconds, presets="best_quality")
        predicted = predictor.predict(pd.DataFrame(stored["test"]).add_prefix("f"))
    print(json.dumps([int(label) for label in predicted]))


if __name__ == "__main__":
    main()

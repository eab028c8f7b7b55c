"""What was detected in a folder of images, and the metric of a competition that names none."""

from dataclasses import dataclass

from competition.prepare.competition import Competition, Predicts
from competition.prepare.targets import Target

# scikit-learn's default, which most graders use; it differs from macro_f1 if a class has no test row.
LABEL_METRIC = "macro_f1_present"


@dataclass(frozen=True)
class Layout:
    """The detected content of the folder. train: ids, labels and groups; test: ids; in the order of the tables."""

    competition: Competition
    train: tuple[list[str], list[int], list[str]]
    test: list[str]


def default_metric(target: Target, predicts: Predicts) -> str:
    """The metric of a competition that names none."""
    if target == "multi":
        return "macro_f1" if predicts == "label" else "mean_column_auc"
    if target in ("ordinal", "regression"):
        return "quadratic_kappa" if target == "ordinal" else "rmse"
    return LABEL_METRIC if predicts == "label" else "log_loss"

"""A trained blend or member as an estimator of scikit-learn, for its plots, metrics and inspection tools."""

from collections.abc import Sequence

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags

from competition.config.errors import UserError
from competition.prepare.adapter_types import Competition
from competition.serving.new_images import NewImage, NewImagePredictor, read_new_images


class _TrainedOnFolds(BaseEstimator):
    """What classifiers and regressors share: they are trained, a copy is the same model, and fit is refused."""

    def __init__(self, predictor: NewImagePredictor, competition: Competition, member: str = "") -> None:
        """member: "" = the blend."""
        self.predictor, self.competition, self.member = predictor, competition, member

    def fit(self, X: object, y: object = None) -> None:
        """Raise UserError: training is `make train`, and its cross-validated score is there already."""
        raise UserError(
            "this estimator is trained: `make train predict` trains it on folds, scores() has its cross-validated scores and "
            "oof() its out-of-fold predictions; wrap it in sklearn.frozen.FrozenEstimator where a tool insists on fit"
        )

    def __sklearn_clone__(self) -> "_TrainedOnFolds":
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False  # it is fitted
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = False, True, True
        return tags


class ImageClassifier(ClassifierMixin, _TrainedOnFolds):
    """X: paths, encoded bytes or uint8 arrays of images, or one array (N, H, W, 3); see read_new_images."""

    @property
    def classes_(self) -> np.ndarray:
        """(C,) class names, sorted as scikit-learn has them; of several labels per image in the competition's order."""
        classes = np.array(self.competition.classes)
        return classes if self.competition.target == "multi" else np.sort(classes)

    def predict(self, X: NewImage | Sequence[NewImage]) -> np.ndarray:
        """(N,) class names by the blend's decision rule; several labels per image: (N, C) of 0 and 1."""
        decided = self.predictor.predict(read_new_images(X), self.member)[1]
        return decided.astype(int) if decided.ndim == 2 else np.array(self.competition.classes)[decided]

    def predict_proba(self, X: NewImage | Sequence[NewImage]) -> np.ndarray:
        """(N, C) float32 in the order of classes_."""
        order = [self.competition.classes.index(name) for name in self.classes_]
        return self.predictor.predict(read_new_images(X), self.member)[0][:, order]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self.competition.target == "multi"
        return tags


class ImageRegressor(RegressorMixin, _TrainedOnFolds):
    """X: as of ImageClassifier."""

    def predict(self, X: NewImage | Sequence[NewImage]) -> np.ndarray:
        """(N,) values."""
        return self.predictor.predict(read_new_images(X), self.member)[0][:, 0]

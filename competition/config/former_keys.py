"""Keys of params.yaml that no longer exist or that never did, for messages that say what to write instead."""

from typing import Any

# Keys that do not exist though one may expect them -> what to write instead.
NOT_A_KEY = {
    "metric": "competition.metric names the metric",
    "blend.weights": "the weights of the members are fitted; blend.members=[a, b] chooses the members, blend.methods=[equal] weights "
    "them equally",
}
# Parameters of `train` that no longer exist, with the default that they had.
REMOVED_FROM_TRAIN: dict[str, Any] = {"loop": "auto", "rand_augment": 0, "trivial_augment": False}

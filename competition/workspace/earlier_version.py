"""Results of earlier versions: what they recorded, under the names and with the keys of today.

Commit 2739021 recorded a digest of the source code where there are named versions now. Its code trained and predicted what
TRAINING = 1 and PREDICTION = 1 do. So a run that it began keeps its digest, its folder and all that refers to them
(predictions, blends, the ledger), and is continued.
"""

from collections.abc import Mapping
from typing import Any

from competition.config.digests import to_plain
from competition.config.params import Member, stated_keys
from competition.training.versions import PREDICTION, TRAINING

CODE = "c5a07fdb0f1f15611c332b218c95472253b324b3366452ce7aad257624c004cb"
# Parameters of train that no longer exist, at the values without effect. Runs and studies still record them, so that the digests of
# what was trained with these values stay the same.
REMOVED = {"rand_augment": 0, "trivial_augment": False}
RENAMED = {"low_resolution_epochs": "small_epochs", "low_resolution_size": "small_size"}  # keys of train: now -> then
# Keys of train that are gone -> the value with which earlier versions trained what today's does. Fold models and studies still
# depend on them, so those of earlier versions stay current.
REMOVED: dict[str, Any] = {"loop": "auto"}


def recorded_member(member: Member) -> dict[str, Any]:
    """What fold models and studies record of a member: the keys that it states, and those that are gone."""
    stated = stated_keys(member)
    return {**stated, "train": {**stated["train"], **REMOVED}}


def read_member(depends: Mapping[str, Any]) -> dict[str, Any]:
    """The member that a run recorded, without keys that are gone, under today's names."""
    member: dict[str, Any] = with_names_of_today(depends)["member"]
    return {**member, "train": {key: value for key, value in member["train"].items() if key not in REMOVED}}


def recorded_member(member: Mapping[str, Any]) -> dict[str, Any]:
    """A member (`stated_keys`) as runs and studies record it: with the removed parameters."""
    return {**member, "train": {**member["train"], **REMOVED}}


def recorded_then(depends: Mapping[str, Any]) -> dict[str, Any] | None:
    """What 2739021 recorded for a run that depends on this; None if the results differ from those of today's version."""
    if TRAINING != 1:
        return None
    then: dict[str, Any] = to_plain(depends)
    then.pop("training_version")
    train = then["member"]["train"]
    then["member"]["train"] = {RENAMED.get(key, key): value for key, value in train.items()}
    return {**then, "code": CODE}


def is_of_then(depends: Mapping[str, Any]) -> bool:
    """Return True if a run, with these dependencies, was begun at 2739021."""
    return depends.get("code") == CODE


def with_names_of_today(depends: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded dependencies of a run or a study, without the removed parameters, and under today's names and version if they are
    of 2739021. A removed parameter with a value that had an effect stays.
    """
    names_now = {then: now for now, then in RENAMED.items()} if is_of_then(depends) else {}
    recorded = {
        name: value for name, value in depends["member"]["train"].items() if (name, value) not in REMOVED.items()
    }
    train = {names_now.get(key, key): value for key, value in recorded.items()}
    now = {**depends, "member": {**depends["member"], "train": train}}
    if is_of_then(depends):
        del now["code"]
        now["training_version"] = 1
    return now


def training_of(depends: Mapping[str, Any]) -> object:
    """The version of training that a run records."""
    return with_names_of_today(depends).get("training_version")


def prediction_entry(depends: Mapping[str, Any]) -> dict[str, int]:
    """The entry for the version of prediction among what the predictions of a run depend on.

    depends: of the run.  Predictions of 2739021 have none, and remain those of version 1.
    """
    return {} if is_of_then(depends) and PREDICTION == 1 else {"prediction_version": PREDICTION}

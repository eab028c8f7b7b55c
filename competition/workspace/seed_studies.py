"""Results of `make noise`: the spread of a member's score over training seeds."""

from dataclasses import replace
from pathlib import Path

from competition.config.digests import digest_of
from competition.config.params import Member
from competition.config.yaml_text import read_yaml
from competition.training.versions import TRAINING
from competition.workspace.studies import DIGITS, member_with_tuned_values, study_subject
from competition.workspace.workspace import Workspace


def seed_study_path(workspace: Workspace, name: str, member: Member) -> Path:
    """Path of the result of `make noise` for a member.

    It is valid for the data, the metric, the version of training, and the member without its seed.
    """
    member = replace(member, train=replace(member.train, seed=0))
    subject = study_subject(workspace.prepared.digest, workspace.params, member)
    depends = {**subject, "metric": workspace.prepared.competition.metric, "training_version": TRAINING}
    return workspace.folder / "noise" / name / f"{digest_of(depends)[:DIGITS]}.json"


def seed_spreads(workspace: Workspace) -> tuple[dict[str, float], list[str]]:
    """Member -> standard deviation of its score over training seeds, if it has a current seed study; and notes.

    The spread of a member that is averaged over n seeds is smaller by the square root of n.
    """
    spreads, notes = {}, []
    for name in workspace.params.members:
        if not any((workspace.folder / "noise" / name).glob("*.json")):
            continue
        member, _ = member_with_tuned_values(workspace, name)
        path = seed_study_path(workspace, name, member)
        if path.is_file():
            spreads[name] = float(read_yaml(path)["spread"]) / member.seeds**0.5
        else:
            notes.append(
                f"{name}: its seed study is of other parameters or data; `make noise MEMBER={name}` repeats it"
            )
    return spreads, notes

"""Write the parameters of a stored run, or of one trial of a study, into the parameter file; comments and formatting stay."""

from dataclasses import dataclass, replace
from typing import Literal

from competition.config.digests import to_plain
from competition.config.errors import UserError, did_you_mean
from competition.config.params import Member, Params
from competition.config.params_file import load_params, stated_keys
from competition.config.search_space import CHOSEN_IN_EACH_FOLD, with_values
from competition.config.yaml_text import read_text, read_yaml, rendered, set_value
from competition.files.manifest import changed_keys, write_text
from competition.workspace.runs import find_run
from competition.workspace.studies import study_differences, used_study
from pipelines.terminal.job import Job
from pipelines.terminal.output import display_path


@dataclass(frozen=True)
class Adopted:
    """Parameters to be written: of a run, or of a trial."""

    name: str  # of the member
    member: Member
    fit: Literal["squash", "crop"]
    label: str  # for messages


def run(job: Job) -> None:
    """members/<member>/<run>/run.json, or tune/<member>/<digest>/best.json -> the parameter file"""
    path = job.options.params
    params = load_params(path)
    if job.options.trial:
        adopted = adopted_trial(job, params, job.options.trial)
    elif job.options.run:
        run = find_run(job.work, job.options.run)
        adopted = Adopted(run.name, run.member, run.depends["fit"], run.label)
    else:
        raise UserError(
            "RUN= was not given; expected a run listed by `make runs`, for example: make adopt RUN=cnn@1a2b3c4d, or a trial of "
            "a study: make adopt TRIAL=cnn:7"
        )
    changes = changes_for(adopted, params)
    text = read_text(path)
    if any(keys[0] == "members" for keys in changes):
        tree = read_yaml(path)
        if not isinstance(tree.get("members"), dict):  # an edit of its base would change other files
            base = tree.get("extends", "another file")
            remedy = f"use PARAMS={base} to write members.{adopted.name} there"
            raise UserError(f"{path.name} takes its members from {base}; {remedy}")
    for keys, value in changes.items():
        text = set_value(text, keys, value)
    seeds = params.members[adopted.name].seeds if adopted.name in params.members else 1
    members = {**params.members, adopted.name: replace(adopted.member, seeds=seeds)}
    expected = replace(params, members=members, prepare=replace(params.prepare, fit=adopted.fit))
    temporary_path = path.with_name(f".adopt-{path.name}")  # beside the file: `extends` is relative
    try:
        temporary_path.write_text(text, encoding="utf-8")
        differing = changed_keys(to_plain(expected), to_plain(load_params(temporary_path)))
    finally:
        temporary_path.unlink(missing_ok=True)
    if differing:
        lines = "; ".join(f"{'.'.join(keys)}: {rendered(value)}" for keys, value in changes.items())
        raise UserError(f"{path.name} cannot be edited safely ({differing[0]}); write these values yourself: {lines}")
    if changes:
        write_text(path, text)
    job.echo(*(f"adopt: {'.'.join(keys)}: {rendered(value)}" for keys, value in changes.items()))
    job.echo(f"adopt: {display_path(path)} {'has' if changes else 'already has'} the parameters of {adopted.label}")


def adopted_trial(job: Job, params: Params, label: str) -> Adopted:
    """The member with the values of one finished trial.  label: MEMBER:NUMBER.

    Its tuned folds are those of the study: their rows stay excluded from the honest scores.
    """
    name, _, number = label.partition(":")
    if name not in params.members:
        similar = did_you_mean(name, params.members)
        raise UserError(f"TRIAL={label}: no member {name!r}{similar}; expected MEMBER:NUMBER, e.g. cnn:7")
    study = used_study(job.workspace, name)
    if study is None:
        changes = study_differences(job.workspace, name)
        other = f"its study is of other data or parameters ({'; '.join(changes[:3])})"
        reason = other if changes else "it has no finished study"
        raise UserError(f"TRIAL={label}: {reason}; `make tune MEMBER={name}` makes one of the present parameters")
    best = study.result
    points = {str(best["trial"]): best["values"], **best["tried"]}
    if number not in points:
        raise UserError(
            f"TRIAL={label}: {display_path(study.folder)} has no finished trial {number or '?'}; expected one of "
            f"{', '.join(f'{name}:{each}' for each in sorted(points, key=int))}"
        )
    member, values = params.members[name], {**best["own_values"], **points[number]}  # whatever was adopted earlier
    if member.head is not None and values.get("head.strength") == CHOSEN_IN_EACH_FOLD:
        strengths = study.depends["member"]["head"].get("strengths", ())
        member = replace(member, head=replace(member.head, strengths=tuple(strengths)))
    member = with_values(member, values)
    member = replace(member, tuned_folds=tuple(sorted({*member.tuned_folds, *best["folds"]})))
    return Adopted(name, member, params.prepare.fit, f"trial {label}")


def changes_for(adopted: Adopted, params: Params) -> dict[tuple[str, ...], object]:
    """Keys of the parameter file -> value of the run, where the two differ."""
    name, fit = adopted.name, adopted.fit
    changes: dict[tuple[str, ...], object] = {("prepare", "fit"): fit} if fit != params.prepare.fit else {}
    if name not in params.members:
        stated = to_plain(stated_keys(adopted.member))
        common = to_plain(params.train)
        own = {key: value for key, value in stated.pop("train").items() if value != common[key]}
        return {**changes, ("members", name): {**stated, **({"train": own} if own else {})}}
    before, after = to_plain(params.members[name]), to_plain(replace(adopted.member, seeds=params.members[name].seeds))
    for key in after:
        if isinstance(before[key], dict) and isinstance(after[key], dict):  # train and head
            differing = {k: value for k, value in after[key].items() if value != before[key][k]}
            changes |= {("members", name, key, k): value for k, value in differing.items()}
        elif after[key] != before[key]:
            changes["members", name, key] = after[key]
    return changes

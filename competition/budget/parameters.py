"""The parameter file that a budget writes: the members that it chose as plain values, without the search."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from competition.config.digests import to_plain
from competition.config.params import Member, Params
from competition.config.params_file import Override, file_tree, stated_keys
from competition.config.secrets import is_secret
from competition.config.validation import validate
from competition.config.yaml_text import read_yaml, rendered

MOST_VIEWS = 2  # of predict.views that are used: every view costs a pass over all images


def with_members(
    params: Params, members: Mapping[str, Member], blended: Sequence[str], views: tuple[str, ...] = ()
) -> Params:
    """The parameters with these members, of which `blended` are blended beside those with external predictions.

    Nothing is tuned, and what a member needs of a cluster stays.  views: of the prediction; () = the first ones of the parameters.
    """
    return replace(
        params,
        members=dict(members),
        blend=replace(params.blend, members=(*blended, *params.external)),
        tune=replace(params.tune, trials=0, members=()),
        cluster=replace(
            params.cluster, members={name: needs for name, needs in params.cluster.members.items() if name in members}
        ),
        predict=replace(params.predict, views=views or params.predict.views[:MOST_VIEWS]),
    )


def imported(path: Path, params: Params) -> Params:
    """The parameters with the members, views and blend that a budget chose on another machine, where it extends another file.

    path: the parameter file that it wrote there.
    """
    tree = read_yaml(path)
    complete = file_tree(with_members(replace(params, external={}), {}, ()))
    members = validate({**complete, "members": tree["members"]}, params.plugins).members
    blended = tree["blend"]["members"] or list(members)
    return with_members(params, members, blended, tuple(tree["predict"]["views"]))


def file_text(
    params: Params, base: Path, overrides: Sequence[Override], comments: Mapping[str, str], head: Sequence[str]
) -> str:
    """The text of a parameter file that extends `base` and gives `params`, those of `with_members`.

    base: path as it is written.  overrides: of SET, which the file states.  comments: member -> its comment.
    head: lines of the comment at the top.
    """
    lines = [*(f"# {line}" for line in head), f"extends: {rendered(base.as_posix())}"]
    # () = all: then a member that a user adds takes part, too.
    all_are_blended = {*params.blend.members} == {*params.members, *params.external}
    blended = () if all_are_blended else params.blend.members
    blocks: dict[str, dict[str, object]] = {
        "predict": {"views": params.predict.views},
        "policy": {"method": params.policy.method},
        "tune": {"trials": 0, "members": []},
        "blend": {"members": blended},
        "cluster": {"members": params.cluster.members},
    }
    plain = to_plain(params)
    for path in (override.path for override in overrides if override.path[0] != "members"):
        if len(path) == 1:
            blocks[path[0]] = plain[path[0]]
        elif not is_secret(path):
            blocks.setdefault(path[0], {}).setdefault(path[1], plain[path[0]][path[1]])
    lines += [f"{name}: {rendered(to_plain(values))}" for name, values in blocks.items()]
    lines.append("members:")
    common = asdict(params.train)
    for name, member in params.members.items():
        stated = stated_keys(member)
        stated["train"] = {key: value for key, value in stated["train"].items() if value != common[key]}
        if stated.get("head"):
            stated["head"] = {key: value for key, value in stated["head"].items() if value != ()}
        lines += [f"  # {comments.get(name, 'its features are used by another member')}", f"  {rendered(name)}:"]
        lines += [f"    {key}: {rendered(to_plain(value))}" for key, value in stated.items()]
    for name, files in params.external.items():
        lines.append(f"  {rendered(name)}: {rendered({'predictions': to_plain(files)})}")
    return "\n".join(lines) + "\n"

"""What is exported: the fitted chain, or one member of it, with the weights of its fold models and their digests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from competition.artifacts.dependencies import (
    fold_model_dependencies,
    fold_model_path,
    fold_views_path,
    member_with_tuned_values,
)
from competition.artifacts.ensemble_inputs import prediction_sources
from competition.artifacts.manifest import Manifest, files_intact, is_current, read_manifest
from competition.config.errors import UserError
from competition.config.params import Member, Params
from competition.config.params_file import Override
from competition.data.prepared import Prepared
from competition.ensemble.blend import Blend
from competition.ensemble.chain import Chain
from competition.ensemble.decision import ARGMAX


@dataclass(frozen=True)
class Selection:
    """One thing to export: the blend, one member, or some fold models of one member."""

    name: str  # name of its folder: blend, member-cnn, member-cnn-folds-0-2
    title: str  # for readers: "the blend", "member cnn, fold 0"
    chain: Chain
    members: Mapping[str, Member]  # those with a weight, as they were trained
    weights: Mapping[str, Mapping[int, Path]]  # member -> fold -> weights.npz
    digests: Mapping[str, Mapping[str, str]]  # member -> fold -> sha256 of weights.npz
    is_blend: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sides of the images that the members take, pixels, ascending."""
        return tuple(sorted({member.image_size for member in self.members.values()}))


def export_name(member: str, folds: Sequence[int]) -> str:
    """Name of the folder of an export.  member: "" = the blend.  folds: () = all."""
    if not member:
        return "blend"
    return f"member-{member}" + (f"-folds-{'-'.join(map(str, folds))}" if folds else "")


def select(
    work: Path,
    params: Params,
    prepared: Prepared,
    overrides: Sequence[Override],
    member: str = "",
    folds: Sequence[int] = (),
) -> Selection:
    """Select the blend, or `member` alone, or its fold models `folds`; all fold models if there are none.

    A single member keeps its views and temperature of the blend, without the blend's decision rule, which was fitted on
    blended probabilities; before `make predict` it gets the identity view alone.
    Raises UserError for what is not trained, not blended or cannot be served.
    """
    blend = read_manifest(work / "blend" / "manifest.json")
    chain = Chain.load(work / "blend" / "chain.json") if blend is not None else None
    if not member:
        if folds:
            raise UserError("FOLD= selects fold models of one member; name it as well: MEMBER=cnn FOLD=0")
        return _blend(work, params, prepared, overrides, chain, blend)
    weights = {member: _trained_weights(work, params, prepared, overrides, member, folds)}
    name = export_name(member, folds)
    title = f"member {member}" + (
        f", fold{'s' if len(folds) > 1 else ''} {', '.join(map(str, folds))}" if folds else ""
    )
    chain = _chain_of_member(member, prepared, params, chain)
    return _selection(name, title, work, params, overrides, chain, weights, False)


def _blend(
    work: Path,
    params: Params,
    prepared: Prepared,
    overrides: Sequence[Override],
    chain: Chain | None,
    manifest: Manifest | None,
) -> Selection:
    if chain is None or manifest is None or not files_intact(work / "blend" / "manifest.json", manifest):
        raise UserError("there is no complete blend to export; `make predict` makes it, or name one member: MEMBER=cnn")
    check_chain(chain, params)
    recorded, current = manifest.depends["predictions"], prediction_sources(work, params, prepared, allow_partial=True)
    stale = [name for name in chain.used_views() if recorded.get(name) != current.get(name)]
    if stale:
        raise UserError(
            f"the blend was fitted on other predictions of {', '.join(stale)}; `make predict` fits it again"
        )
    weights = {}
    for name in chain.used_views():
        folds = sorted(map(int, recorded[name]))
        weights[name] = _trained_weights(work, params, prepared, overrides, name, folds)
        for fold in folds:
            views = read_manifest(fold_views_path(work, name, fold))
            model = read_manifest(fold_model_path(work, name, fold))
            if views is None or model is None or views.depends["model"] != model.files["weights.npz"]:
                raise UserError(f"member {name} fold {fold} was trained again after the blend; run `make predict`")
    return _selection("blend", "the blend", work, params, overrides, chain, weights, True)


def check_chain(chain: Chain, params: Params) -> None:
    """Raise UserError if the chain cannot answer for one image alone, or contains models that are not here."""
    if not chain.by_rows:
        raise UserError(
            "the blend averages ranks, which depend on all rows of a prediction, so it cannot be served; choose another "
            'blend, e.g. SET="blend.mixing=mean policy.mixing=mean", or export one member: MEMBER=cnn'
        )
    external = [name for name in chain.used_views() if name in params.foreign]
    if external:
        raise UserError(
            f"the blend contains {', '.join(external)}, trained outside this project: there is no model to export; blend "
            "without it, or export one member: MEMBER=cnn"
        )


def _chain_of_member(member: str, prepared: Prepared, params: Params, chain: Chain | None) -> Chain:
    """The views and the temperature of this member in the blend, without weights and decision rule."""
    blend, metric = Blend("best", "mean", {member: 1.0}, ()), prepared.competition.metric
    usable = chain is not None and member in chain.policies and chain.view_mixing != "rank"
    if chain is None or not usable:
        return Chain(metric, {member: {"identity": 1.0}}, "mean", {member: 1.0}, blend, ARGMAX)
    policy, temperature = chain.policies[member], chain.temperatures[member]
    return replace(chain, policies={member: policy}, temperatures={member: temperature}, blend=blend, decision=ARGMAX)


def _trained_weights(
    work: Path, params: Params, prepared: Prepared, overrides: Sequence[Override], name: str, folds: Sequence[int]
) -> dict[int, Path]:
    """Fold -> weights.npz of the current fold models of one member.  folds: () = all K."""
    if name not in params.members:
        raise UserError(f"MEMBER={name}: no such member; the members are {', '.join(params.members)}")
    member, _ = member_with_tuned_values(work, params, name, overrides)
    paths = {}
    for fold in folds or range(params.prepare.folds):
        path = fold_model_path(work, name, fold)
        if not is_current(path, fold_model_dependencies(work, prepared, params, member, fold)):
            raise UserError(
                f"member {name} fold {fold} is not trained with these parameters; `make train MEMBER={name} FOLD={fold}` "
                "trains it"
            )
        paths[fold] = path.with_name("weights.npz")
    return paths


def _selection(
    name: str,
    title: str,
    work: Path,
    params: Params,
    overrides: Sequence[Override],
    chain: Chain,
    weights: Mapping[str, Mapping[int, Path]],
    is_blend: bool,
) -> Selection:
    members = {member: member_with_tuned_values(work, params, member, overrides)[0] for member in weights}
    digests: dict[str, dict[str, str]] = {}
    for member, paths in weights.items():
        manifests = {fold: read_manifest(path.with_name("manifest.json")) for fold, path in paths.items()}
        digests[member] = {str(fold): manifest.files["weights.npz"] for fold, manifest in manifests.items() if manifest}
    return Selection(name, title, chain, members, weights, digests, is_blend)


def export_dependencies(
    selection: Selection, prepared: Prepared, params: Params, formats: Sequence[str]
) -> dict[str, Any]:
    """What an export depends on."""
    return {
        "data": prepared.digest,
        "fit": params.prepare.fit,
        "chain": selection.chain,
        "members": {name: _architecture(member) for name, member in selection.members.items()},
        "models": selection.digests,
        "formats": list(formats),
    }


def _architecture(member: Member) -> dict[str, Any]:
    return {"architecture": member.architecture, "image_size": member.image_size, "alpha": member.alpha}

"""What predicts new images or is exported: the chain, or one member of it, with its fold models and their digests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from competition.config.digests import digest_of, to_plain
from competition.config.errors import UserError
from competition.config.params import Member
from competition.ensemble.blend_weights import Blend
from competition.ensemble.chain import Chain
from competition.ensemble.decision import ARGMAX, Decision
from competition.ensemble.mixing import MEAN_OF
from competition.files.manifest import intact_manifest, read_manifest
from competition.workspace.current_blend import current_blend
from competition.workspace.dependencies import budget_file_of, fold_manifest_path, fold_model
from competition.workspace.ensemble_inputs import prediction_sources
from competition.workspace.runs import Run, blended_runs
from competition.workspace.workspace import Workspace


@dataclass(frozen=True)
class Selection:
    """What predicts: the blend, or one member."""

    title: str  # for readers: "the blend", "member cnn"
    chain: Chain
    members: Mapping[str, Member]  # those with a weight, as they were trained
    weights: Mapping[str, Mapping[str, Path]]  # member -> model (fold, or run:fold for several seeds) -> weights.npz
    digests: Mapping[str, Mapping[str, str]]  # member -> model -> sha256 of weights.npz
    is_blend: bool

    @property
    def digest(self) -> str:
        """Of the chain and its fold models."""
        return digest_of([self.chain, self.digests])


def select(workspace: Workspace, member: str) -> Selection:
    """Select the blend (member ""), or `member` alone.

    A single member keeps its views of the blend, without the blend's decision rule, which was fitted on
    blended probabilities; without a blend that has it, it gets the identity view alone.
    Raises UserError for what is not trained or not blended, and for members trained elsewhere, whose models are not here.
    """
    params = workspace.params
    folder = current_blend(workspace)
    if not member:
        return _blend(workspace, folder)
    if member in params.external:
        own = ", ".join(params.members) or "none"
        raise UserError(f"MEMBER={member}: trained elsewhere, so no model of it is here; members with models are {own}")
    if member not in params.members:
        raise UserError(f"MEMBER={member}: not trained here; the members are {', '.join(params.members)}")
    runs = blended_runs(workspace.with_blended(member))[member]
    models = [(run, range(params.prepare.folds)) for run in runs]
    competition = workspace.prepared.competition
    metric, views = competition.metric, {"identity": 1.0}
    if folder is not None and member in (blended := Chain.load(folder / "chain.json")).policies:
        metric, views = blended.metric, dict(blended.policies[member])
    blend, decision = Blend("best", MEAN_OF[competition.targets.kind], {member: 1.0}), ARGMAX
    if competition.targets.kind == "multi":
        decision = Decision("half", (), (), 0.0, True, competition.needs_a_label)
    chain = Chain(metric, {member: views}, blend, decision)
    return _selection(f"member {member}", chain, {member: models}, False)


def _blend(workspace: Workspace, folder: Path | None) -> Selection:
    manifest = intact_manifest(folder / "manifest.json") if folder is not None else None
    if folder is None or manifest is None:
        raise UserError(
            "these parameters have no complete blend; `make predict` makes it, PARAMS=FILE names the parameters of another one, and "
            f"MEMBER={next(iter(workspace.params.members), 'NAME')} takes one member alone"
        )
    chain = Chain.load(folder / "chain.json")
    names = chain.blend.used
    if external := [name for name in names if name in workspace.params.external]:
        own = [name for name in chain.policies if name in workspace.params.members]
        remedy = "none of its members was trained here"
        if own:
            remedy = f'`make blend SET="blend.members=[{",".join(own)}]"` blends without it, MEMBER={own[0]} takes one member alone'
        raise UserError(f"the blend contains {', '.join(external)}, trained elsewhere: no model is here; {remedy}")
    only = workspace.with_blended(*names)
    current = to_plain(prediction_sources(only, True))
    recorded = manifest.depends["predictions"]
    stale = [name for name in names if recorded.get(name) != current.get(name)]
    if file := budget_file_of(stale, workspace.folder, workspace.params):
        raise UserError(f"the blend is of members that HOURS= made; name their parameter file: PARAMS={file}")
    if stale:
        raise UserError(
            f"the blend was made with other models or parameters of {', '.join(stale)}: repeat PARAMS and SET of that time, or "
            "`make train predict` makes another one"
        )
    runs = blended_runs(only)
    models = {
        name: [
            (run, sorted(map(int, recorded[name][run.digest]))) for run in runs[name] if run.digest in recorded[name]
        ]
        for name in names
    }
    return _selection("the blend", chain, models, True)


def _selection(
    title: str, chain: Chain, models: Mapping[str, Sequence[tuple[Run, Sequence[int]]]], is_blend: bool
) -> Selection:
    """models: member -> its runs, each with the folds whose models are exported."""
    weights: dict[str, dict[str, Path]] = {}
    digests: dict[str, dict[str, str]] = {}
    for member, by_run in models.items():
        if len({len(folds) for _, folds in by_run}) > 1:
            raise UserError(
                f"the runs of member {member} have different numbers of fold models, so their average is no plain mean; "
                f"`make train predict MEMBER={member}` completes them"
            )
        weights[member], digests[member] = {}, {}
        for run, fold in ((run, fold) for run, folds in by_run for fold in folds):
            path = fold_manifest_path(run, fold)
            manifest = read_manifest(path)
            if manifest is None or not fold_model(run, fold).is_current:
                raise UserError(
                    f"member {run.name} fold {fold} is not trained with these parameters; run make train MEMBER={run.name} FOLD={fold}"
                )
            model = f"{run.digest[:8]}:{fold}" if len(by_run) > 1 else str(fold)
            weights[member][model] = path.with_name("weights.npz")
            digests[member][model] = manifest.files["weights.npz"]
    members = {member: by_run[0][0].member for member, by_run in models.items()}
    return Selection(title, chain, members, weights, digests, is_blend)

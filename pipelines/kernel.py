"""Train and predict on a Kaggle machine what is missing here, and bring it home as if it had been made here.

Where submissions come from notebooks only (kaggle.submit: notebook), the kernel blends too, and leaves the submission.
"""

import hashlib
import json
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from competition.artifacts.dependencies import member_with_tuned_values, model_manifest
from competition.artifacts.manifest import atomic_write
from competition.config.errors import UserError
from competition.config.params import Member
from competition.config.params_file import in_training_order
from competition.data.adapters import ADAPTERS
from competition.data.index import choices, save
from competition.data.prepared import Prepared, load_prepared
from competition.kaggle import submit
from competition.kaggle.client import Client, KaggleError, slug_of
from competition.kernels import api as kernels
from competition.kernels import import_results as kernel_home
from competition.kernels import packing
from competition.kernels import request as kernel_work
from competition.kernels.push import PushIntent, find_lost_push, newest_version, push_once, read_push_intent
from competition.preflight.results import objections, question_of
from competition.preflight.topology import ALIASES, topology_named
from pipelines.cli import main
from pipelines.runner import Job, display_path, kaggle_client, lock, selected_folds, selected_members
from pipelines.versions import ROOT

HOUR = 3600
INDEX = ("kernel", "index", "index.csv")
MADE = ("kernel", "made")  # there: the submission and its line of the ledger


def run(job: Job) -> None:
    """data/, params -> a private kernel; its output -> members/, tune/; kernel/: the notebook, and what is under way"""
    job.require(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    tuned = {n: member_with_tuned_values(job.work, job.params, n, job.overrides) for n in in_training_order(job.params)}
    members = {name: member for name, (member, _) in tuned.items()}
    missing = missing_folds(job, prepared, members)
    state = job.path("kernel", "run.json")
    if not missing and not state.exists() and not wants_submission(job):
        job.echo("kernel: current; every fold model that was asked for is here")
        return
    state.parent.mkdir(parents=True, exist_ok=True)
    with lock(state.with_name("kernel.lock")):
        client = kaggle_client(job)
        if state.exists() and not job.options.force and not job.options.again:
            under_way = go_on(job, client, state)
        else:
            to_tune = [name for name in missing if job.params.tune.trials and not tuned[name][1]]
            under_way = start(job, client, prepared, members, missing, to_tune, state)
        home = kernel_home.ImportTarget(job.work, job.submissions, job.params, job.overrides, prepared, job.echo)
        try:
            kernel_home.import_output(home, client, under_way)
        except kernel_home.Failed:
            state.unlink()  # it will not go on: the same command starts anew
            raise
        state.unlink()


def go_on(job: Job, client: Client, state: Path) -> PushIntent:
    """The run that was pushed before; one whose push was never answered is looked for on Kaggle."""
    under_way = read_push_intent(state)
    if not under_way.version:
        under_way = find_lost_push(client, under_way, state, job.params.kaggle.listing_lag)
    job.echo(f"kernel: going on with run {under_way.run}, version {under_way.version} (AGAIN=1 pushes anew)")
    return under_way


def missing_folds(job: Job, prepared: Prepared, members: dict[str, Member]) -> dict[str, list[int]]:
    """member -> folds that are asked for and not here, or not as they are wanted."""
    found = {}
    for name in members:
        if name in selected_members(job):
            asked = selected_folds(job)
            lacking = kernel_work.stale_folds(job.work, job.params, prepared, name, members[name], asked)
            found[name] = asked if job.options.force else lacking
    return {name: folds for name, folds in found.items() if folds}


def wants_submission(job: Job) -> bool:
    """Submissions come from notebooks, and none has made the one that is wanted now."""
    if job.params.kaggle.submit == "file":
        return False
    made = submit.read_made(job.path("kernel", "submission.json"))
    return (
        made is None
        or job.options.force
        or job.options.again
        or made.asked != kernel_work.submission_request_digest(job.work, job.params)
    )


def start(
    job: Job,
    client: Client,
    prepared: Prepared,
    members: dict[str, Member],
    missing: dict[str, list[int]],
    to_tune: list[str],
    state: Path,
) -> PushIntent:
    """Pack, show the quota, push. Returns what must be known to bring the results home; it is in `state` as well."""
    heed_preflight(job, len(prepared.competition.classes), {name: members[name] for name in missing})
    for name, folds in missing.items():
        job.echo(f"kernel: {name}: folds {', '.join(map(str, folds))}")
    how, owner = job.params.kernel, job.params.kernel.owner or kernels.username(client)
    slug = how.slug or kernels.default_slug(job.params.competition.name)
    submits = makes_submission(job, prepared, members, missing)
    plan = plan_for(job, missing, to_tune, submits)
    index = index_to_follow(job, prepared)
    units = kernel_work.local_inputs(job.params, members)
    units |= kernel_work.units_to_resume(job.work, job.params, members, missing)
    if submits:
        units |= kernel_work.units_to_blend(job.work, job.params, prepared, missing, units)
    files = packing.files(ROOT, job.params, members)
    if len(zlib.compress(index.read_bytes())) <= job.options.inline:
        files[kernel_work.path_in_kernel(job.work, index)] = index.read_bytes()
    else:
        units[kernel_work.path_in_kernel(job.work, index.parent)] = (index.parent, [index])
    text = packing.pack(files, plan)
    contest = slug_of(prepared.competition.slug) if prepared.competition.slug else ""
    kernel = kernels.Kernel(owner, slug, how.machine, how.internet, contest, how.datasets, plan.seconds)
    folder = job.path("kernel", "notebook")
    kernels.write_folder(kernel, text, folder, as_notebook=True)
    job.echo(f"kernel: for the browser, the same as a notebook: {display_path(folder / f'{slug}.ipynb')}")
    show_quota(job, client)
    if units:
        name = f"{owner}/{slug}-carried"
        packs = packing.carry(units, job.path("kernel", "carried"))
        megabytes = sum(pack.stat().st_size for pack in packs) / 1e6
        job.echo(
            f"kernel: {len(units)} folders of this machine go with it, as the private dataset {name} ({megabytes:,.1f} MB)"
        )
        kernels.share(client, name, packs, plan.run, job.params.kaggle.score_wait)
        kernel = replace(kernel, datasets=(*kernel.datasets, name))
    previous, source = newest_version(client, owner, slug), hashlib.sha256(text.encode()).hexdigest()
    at = datetime.now(UTC).isoformat(timespec="seconds")
    intent = PushIntent(plan.run, job.options.force, plan.collect, owner, slug, 0, "", previous, source, at)
    under_way = push_once(client, kernel, text, submits, intent, state, job.params.kaggle.listing_lag)
    job.echo(f"kernel: run {plan.run} is version {under_way.version} of {under_way.url}")
    return under_way


def makes_submission(job: Job, prepared: Prepared, members: dict[str, Member], missing: dict[str, list[int]]) -> bool:
    """Whether the kernel can blend: every fold model is here or will be made there."""
    if job.params.kaggle.submit == "file":
        return False
    kernel_work.submission_request_digest(
        job.work, job.params
    )  # refuses what a notebook cannot use, before anything is pushed
    folds = range(job.params.prepare.folds)
    lacking = [
        f"{name} fold {fold}"
        for name, member in members.items()
        for fold in kernel_work.stale_folds(job.work, job.params, prepared, name, member, folds)
        if fold not in missing.get(name, ())
    ]
    if lacking:
        job.echo(f"kernel: it leaves no submission, for {', '.join(lacking[:5])} would still be missing")
    return not lacking


def heed_preflight(job: Job, classes: int, members: dict[str, Member]) -> None:
    """No hour of a TPU for a step that its compiler has turned down already; FORCE=1 pushes all the same."""
    params, machine = job.params, job.params.kernel.machine
    if packing.accelerator(machine) != "tpu" or machine.lower() not in ALIASES:
        return
    topology, unknown, against = topology_named(machine), [], []
    for name, member in members.items():
        question = question_of(member, params, topology, params.device.backend, classes)
        found = objections(question, job.path("preflight", "answers"))
        unknown += [name] if found is None else []
        against += [f"{name} {sentence}" for sentence in found or ()]
    if unknown:
        job.echo(f"kernel: `make preflight TOPOLOGY={topology.name}` says whether {', '.join(unknown)} would run there")
    for sentence in against:
        job.echo(f"kernel: WARNING {sentence}")
    if against and not job.options.force:
        raise UserError(
            f"preflight found that {len(against)} of {2 * len(members)} steps would not run on {topology.name}, "
            f"{against[0]}; `make preflight TOPOLOGY={topology.name}` names the line to change, FORCE=1 pushes all the same"
        )


def plan_for(job: Job, missing: dict[str, list[int]], to_tune: list[str], submits: bool) -> packing.Plan:
    how, work = job.params.kernel, kernel_work.path_in_kernel(job.work, job.work)
    # Overrides are in the parameters already; said again, they win over what is tuned there, as they do here.
    sets = [f"{'.'.join(o.path)}={json.dumps(o.value)}" for o in job.overrides if o.path[0] in ("train", "members")]
    if job.params.competition.slug and not job.params.competition.miniature:
        sets.append(f"competition.source={{input:{known_file(job)}}}")
    like, made = (kernel_work.path_in_kernel(job.work, job.path(*parts)) for parts in (INDEX, MADE))
    return packing.Plan(
        run=f"{datetime.now(UTC):%Y%m%d-%H%M%S}",
        commands=packing.commands(sets, job.work.parent.name, like, missing, to_tune, made if submits else ""),
        collect=(
            *(f"{work}/members/{name}/fold{fold}" for name in missing for fold in missing[name]),
            *(
                kernel_work.path_in_kernel(job.work, model_manifest(job.work, *model).parent)
                for model in kernel_work.nested_teachers(job.params, missing)
            ),
            f"{work}/tune/*",
        ),
        leave={kernel_home.SUBMISSION: f"{made}/*.csv", kernel_home.LEDGER: f"{made}/ledger.jsonl"} if submits else {},
        needs=packing.requirements((ROOT / "pyproject.toml").read_text(encoding="utf-8")),
        environment={},
        accelerator=packing.accelerator(how.machine),
        devices=how.devices,
        seconds=round(how.hours * HOUR),
        grace=round(how.reserve * HOUR),
    )


def index_to_follow(job: Job, prepared: Prepared) -> Path:
    """Groups and folds as they were made here: other versions of the packages there would make others."""
    path = job.path(*INDEX)
    with atomic_write(path) as temporary:
        save(choices(prepared.index), temporary)
    return path


def known_file(job: Job) -> str:
    """A name at the top of the raw files, by which the kernel finds where Kaggle has put them."""
    raw = job.path("raw")
    return ADAPTERS[job.params.competition.adapter].sample(raw).relative_to(raw).parts[0]


def show_quota(job: Job, client: Client) -> None:
    """Hours left this week; none left is a user_error before anything is pushed."""
    try:
        quota = kernels.quota(client)
    except KaggleError as user_error:
        job.echo(f"kernel: the quota is not known ({user_error})")
        return
    tpu, gpu = quota.tpu_allowed - quota.tpu_used, quota.gpu_allowed - quota.gpu_used
    job.echo(f"kernel: {tpu:.1f} h of TPU and {gpu:.1f} h of GPU are left this week (renewed {quota.refresh[:16]})")
    left = {"tpu": tpu, "gpu": gpu}.get(packing.accelerator(job.params.kernel.machine))
    if left is not None and left <= 0:
        raise UserError(
            f"no hours on {job.params.kernel.machine} are left this week; they are renewed {quota.refresh[:16]} UTC"
        )


if __name__ == "__main__":
    main("kernel")

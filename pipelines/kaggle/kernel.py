"""Train and predict missing fold models on a Kaggle machine and import the results as if they were computed here.

If the competition takes submissions from notebooks only (kaggle.submit: notebook), the kernel also blends and writes the
submission to its output.
"""

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich import filesize

from competition.budget.clock import start_clock
from competition.budget.portfolio import PORTFOLIO
from competition.config.errors import UserError
from competition.config.params import HUB, Member
from competition.config.params_file import BUDGET_FILE
from competition.config.search_space import is_tuned
from competition.config.teachers import in_training_order
from competition.files.manifest import atomic_write, read_record, write_text
from competition.kaggle import submit
from competition.kaggle.client import Client, competition_slug
from competition.kaggle.errors import KaggleError
from competition.kernels import api as kernels
from competition.kernels import import_results, packing, request
from competition.kernels.push import PushIntent, find_lost_push, newest_version, push_once, read_push_intent
from competition.preflight.pairs import KAGGLE, NEWEST
from competition.preflight.results import objections, request_of
from competition.preflight.topology import ALIASES, topology_named
from competition.prepare.adapter_types import SAMPLE
from competition.prepare.index import save
from competition.workspace.dependencies import fold_model, incomplete_folds
from competition.workspace.runs import runs_of
from competition.workspace.studies import member_with_tuned_values
from pipelines.execution.budget_search import offered_networks
from pipelines.execution.selection import selected_folds, selected_members
from pipelines.terminal.job import Job, kaggle_client, lock
from pipelines.terminal.options import ROOT
from pipelines.terminal.output import display_path

HOUR = 3600
INDEX = ("kernel", "index", "index.csv")
OUTPUT = ("kernel", "made")  # in the kernel: the submission and its ledger entry
Folds = dict[str, list[int]]  # member -> folds whose models or predictions are missing
Tuned = Mapping[str, tuple[Member, Mapping[str, object]]]  # of member_with_tuned_values


def run(job: Job) -> None:
    """data/, params -> a private kernel; its output -> members/, tune/; kernel/: the notebook and the state of the run

    With HOURS the kernel makes the best members for that time, and budget/params.yaml names them here.
    """
    hours = hours_of_budget(job)
    names = in_training_order(job.params)
    tuned = {n: member_with_tuned_values(job.workspace, n) for n in names}
    runs = {name: runs_of(job.workspace, name) for name in tuned}
    folds = selected_folds(job)
    stale = {
        name: folds if job.options.force else incomplete_folds(runs[name], job.params, folds)
        for name in selected_members(job)
    }
    missing: Folds = {name: stale[name] for name in runs if stale.get(name) and not hours}
    state = job.path("kernel", "run.json")
    if not hours and not missing and not state.exists() and not needs_submission(job, runs):
        job.echo("kernel: current; all selected fold models and their predictions exist")
        return
    with lock(state.with_name("kernel.lock"), "kernel"):
        client = kaggle_client(job)
        if state.exists() and not job.options.force and not job.options.again:
            push = read_push_intent(state)
            if not push.version:  # the push was never confirmed
                push = find_lost_push(client, push, state, job.params.kaggle.listing_lag)
            job.echo(f"kernel: resuming run {push.run}, version {push.version} (AGAIN=1 pushes a new run)")
        else:
            push = start(job, client, tuned, runs, missing, state)
        target = import_results.ImportTarget(job.workspace, job.submissions, job.echo, job.options.params)
        try:
            import_results.import_output(target, client, push)
        except import_results.KernelFailed:
            state.unlink()  # the run cannot continue; the same command starts a new one
            raise
        state.unlink()


def hours_of_budget(job: Job) -> float:
    """Hours of the budget that the kernel is to spend; 0 = none. Raises UserError if they do not fit into one session."""
    options, settings = job.options, job.params.kernel
    if not options.hours and not options.budget:
        return 0.0
    hours, most = start_clock(options.hours, options.budget).seconds / HOUR, settings.hours - settings.reserve
    if options.member or options.fold:
        raise UserError("with HOURS the budget chooses the members: leave out MEMBER and FOLD")
    if hours >= most:
        raise UserError(
            f"HOURS={hours:g}: a session of the kernel has {most:g} hours for its work (kernel.hours less kernel.reserve), "
            "installing and decoding included; state fewer, and repeat "
            "the command: the next session goes on from what this one made"
        )
    return hours


def needs_submission(job: Job, runs: request.Runs) -> bool:
    """Return True if a notebook has to make the submission and none has made the current one."""
    if job.params.kaggle.submit == "file":
        return False
    submission = read_record(job.path("kernel", "submission.json"), submit.KernelSubmission)
    if submission is None or job.options.force or job.options.again:
        return True
    return submission.request_digest != request.submission_request_digest(runs, job.params)


def start(job: Job, client: Client, tuned: Tuned, runs: request.Runs, missing: Folds, state: Path) -> PushIntent:
    """Pack the work, show the quota and push. Returns the run, which is also written to `state`."""
    prepared, members = job.prepared, {name: member for name, (member, _) in tuned.items()}
    own, tune = job.params.members, job.params.tune
    to_tune = [name for name in missing if is_tuned(own[name], name, tune) and not tuned[name][1]]
    pair = check_preflight(job, len(prepared.competition.classes), {name: members[name] for name in missing})
    job.echo(*(f"kernel: {name}: folds {', '.join(map(str, folds))}" for name, folds in missing.items()))
    settings = job.params.kernel
    owner, slug = kernels.owner_and_slug(client, settings, job.params.competition.name)
    previous = newest_version(client, owner, slug, may_be_other=job.options.again)
    submits = not hours_of_budget(job) and can_blend(job, runs, missing)
    plan = plan_for(job, missing, to_tune, submits, pair)
    index = job.path(*INDEX)  # groups and folds; the kernel's package versions might compute others
    with atomic_write(index) as temporary:
        save(prepared.index.drop(columns="sha256"), temporary)  # digests are recomputed and do not compress
    referenced = packing.referenced_files(job.params, members, is_tuning=bool(to_tune))
    inputs: request.ResultFolders = {folder: (Path(folder), files) for folder, files in referenced.items()}
    inputs |= request.results_to_resume(job.work, job.params, runs, missing)
    if submits:
        inputs |= request.results_to_blend(job.work, job.params, runs, missing, inputs)
    files = packing.source_files(ROOT, packing.kernel_params(job.params, members))
    if hours_of_budget(job):
        inputs |= request.results_of_budget(job.workspace)
        portfolio = job.params.budget.portfolio or PORTFOLIO.relative_to(ROOT).as_posix()
        files[packing.project_path(portfolio, "budget.portfolio")] = (ROOT / portfolio).read_bytes()
    if len(zlib.compress(index.read_bytes())) <= job.options.inline:
        files[request.path_in_kernel(job.work, index)] = index.read_bytes()
    else:
        inputs[request.path_in_kernel(job.work, index.parent)] = (index.parent, [index])
    script = packing.pack(files, plan)
    attached = competition_slug(prepared.competition.slug) if prepared.competition.slug else ""
    kernel = kernels.Kernel(owner, slug, settings.machine, settings.internet, attached, settings.datasets, plan.seconds)
    kernel = replace(kernel, models=models_to_attach(job, members.values()))
    file = job.path("kernel", "notebook", f"{slug}.ipynb")
    write_text(file, packing.notebook(script))
    job.echo(f"kernel: for the browser, the same as a notebook: {display_path(file)}")
    show_quota(job, client)
    if inputs:
        name = f"{owner}/{slug}-carried"
        packs = packing.carry(inputs, job.path("kernel", "carried"))
        size = filesize.decimal(sum(pack.stat().st_size for pack in packs))
        job.echo(f"kernel: {len(inputs)} folders of this machine are sent with it, as private dataset {name} ({size})")
        kernels.upload_dataset(client, name, packs, plan.run, job.params.kaggle.score_wait)
        kernel = replace(kernel, datasets=(*kernel.datasets, name))
    intent = PushIntent(owner, slug, 0, "", plan.run, job.options.force, plan.collect, previous)
    send = partial(kernels.push, client, kernel, script, submits)
    push = push_once(client, send, intent, state, job.params.kaggle.listing_lag)
    job.echo(f"kernel: run {plan.run} is version {push.version} of {push.url}")
    return push


def can_blend(job: Job, runs: request.Runs, missing: Folds) -> bool:
    """Return True if the kernel can blend: every fold model exists here or will be trained there."""
    if job.params.kaggle.submit == "file":
        return False
    # Raises UserError for parameters that a notebook cannot use, before the push.
    request.submission_request_digest(runs, job.params)
    missing_models = [
        f"{name} fold {fold}"
        for name, runs_of_member in runs.items()
        for fold in range(job.params.prepare.folds)
        if fold not in missing.get(name, ()) and not all(fold_model(run, fold).is_current for run in runs_of_member)
    ]
    if missing_models:
        job.echo(f"kernel: no submission will be made: {', '.join(missing_models[:5])} would still be missing")
    return not missing_models


def check_preflight(job: Job, classes: int, members: dict[str, Member]) -> dict[str, str]:
    """Package -> version of the jax and libtpu that the kernel's TPU is to use: those that compiled every step; {} without TPU.

    Those of Kaggle's image first, because they need no installation there. Raises UserError if a preflight result says that
    a step would not run; FORCE=1 only warns.
    """
    params, machine = job.params, job.params.kernel.machine
    if packing.accelerator(machine) != "tpu" or machine.lower() not in ALIASES:
        return {}
    topology, checks = topology_named(machine), []
    for pair in (KAGGLE, NEWEST):
        unchecked, objections_found = [], []
        for name, member in members.items():
            preflight_request = request_of(member, params, topology, "auto", classes)  # as the kernel trains
            objection_list = objections(replace(preflight_request, pair=pair), job.path("preflight", "answers"))
            unchecked += [name] if objection_list is None else []
            objections_found += [f"{name} {sentence}" for sentence in objection_list or ()]
        checks.append((pair, unchecked, objections_found))
    verified = [check for check in checks if not check[1] and not check[2]]
    pair, unchecked, objections_found = [*verified, *(check for check in checks if check[2]), checks[-1]][0]
    if unchecked:
        job.echo(f"kernel: `make preflight TOPOLOGY={topology.name}` says whether {', '.join(unchecked)} would run")
    job.echo(*(f"kernel: WARNING {sentence}" for sentence in objections_found))
    if objections_found and not job.options.force:
        raise UserError(
            f"preflight found that {len(objections_found)} of {2 * len(members)} steps would not run on {topology.name}, "
            f"{objections_found[0]}; `make preflight TOPOLOGY={topology.name}` names the line to change, FORCE=1 pushes anyway"
        )
    job.echo(f"kernel: it trains with jax {pair.jax} with libtpu {pair.libtpu}, the image's own or installed there")
    return {"jax": pair.jax, "jaxlib": pair.jax, "libtpu": pair.libtpu}


def plan_for(job: Job, missing: Folds, to_tune: list[str], submits: bool, pair: dict[str, str]) -> packing.Plan:
    """The plan of a kernel that trains what is missing and predicts by it.

    submits: it also blends, and leaves the submission.  pair: of check_preflight.  With HOURS it makes the best members for
    that time instead, and leaves the parameter file that names them.
    """
    settings, work, hours = job.params.kernel, request.path_in_kernel(job.work, job.work), hours_of_budget(job)
    # Overrides are part of the parameters already; repeated as --set they take precedence over tuned values, as here.
    overrides = [
        f"{'.'.join(o.path)}={json.dumps(o.value)}"
        for o in job.workspace.overrides
        if o.path[0] in ("train", "members")
    ]
    if job.params.competition.slug and not job.params.competition.miniature:
        overrides.append(f"competition.source={{input:{SAMPLE}}}")
    folds_from, output = (request.path_in_kernel(job.work, job.path(*parts)) for parts in (INDEX, OUTPUT))
    # A member that is tuned there gets a run that this machine does not know yet.
    collect = [f"{work}/members/{name}/*/fold{fold}" for name in missing for fold in missing[name]]
    collect.append(f"{work}/tune/*/*")
    last_stages: list[tuple[str, ...]] = [("predict", "--allow-partial")]
    copy_out: dict[str, str] = {}
    if hours:
        last_stages, collect = [("budget", "--hours", f"{hours:g}")], [f"{work}/members/*/*/fold*"]
        copy_out = {import_results.BUDGET: f"{work}/{BUDGET_FILE.as_posix()}"}
    elif submits:
        last_stages.append(("blend", "--submissions", output))
        copy_out = {import_results.SUBMISSION: f"{output}/*.csv", import_results.LEDGER: f"{output}/ledger.jsonl"}
    members = [member for name, member in job.params.members.items() if name in missing or hours]
    return packing.Plan(
        run=f"{datetime.now(UTC):%Y%m%d-%H%M%S}",
        commands=packing.commands(overrides, job.work.parent.name, folds_from, missing, to_tune, last_stages),
        collect=tuple(collect),
        copy_out=copy_out,
        needs=packing.requirements((ROOT / "pyproject.toml").read_text(encoding="utf-8"), members),
        jax=pair,
        accelerator=packing.accelerator(settings.machine),
        devices=settings.devices,
        seconds=round(settings.hours * HOUR),
        grace=round(settings.reserve * HOUR),
    )


def models_to_attach(job: Job, members: Iterable[Member]) -> tuple[str, ...]:
    """The Kaggle models of the KerasHub presets of these members and, with a budget, of the networks that it may choose."""
    presets = sorted({member.weights for member in members if member.weights.startswith(HUB)})
    networks = offered_networks(job.params) if hours_of_budget(job) else []
    offered = sorted({one.member.weights for one in networks if one.member.weights.startswith(HUB)} - {*presets})
    if not presets and not offered:
        return ()
    from competition.training.pretrained_file import hub_handle  # imports Keras

    handles = [hub_handle(preset) for preset in presets]
    try:
        handles += [hub_handle(preset) for preset in offered]
    except UserError as error:
        job.echo(f"kernel: {', '.join(offered)} are not attached, the kernel downloads them: {error}")
    return tuple(handles)


def show_quota(job: Job, client: Client) -> None:
    """Print the hours left this week. Raises UserError before the push if there are none."""
    try:
        quota = kernels.quota(client)
    except KaggleError as error:
        job.echo(f"kernel: could not read the quota ({error})")
        return
    renewed = f"; renewed {quota.refresh[:16]} UTC" if quota.refresh else ""
    job.echo(f"kernel: this week: {'; '.join(quota.summary.values())}{renewed}")
    device = packing.accelerator(job.params.kernel.machine).upper()
    if quota.left.get(device) == 0:
        raise UserError(f"no hours on {job.params.kernel.machine} are left this week{renewed}")

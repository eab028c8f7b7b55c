"""Train and predict on a Kaggle machine what is missing here, and bring it home as if it had been made here."""

import json
import re
import shlex
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from competition.data.adapters import ADAPTERS
from competition.data.index import choices, save
from competition.data.prepared import Prepared, load_prepared
from competition.errors import Refusal
from competition.lineage import fold_depends, fold_model, tuned_member
from competition.manifest import atomic, differences, is_current, read_manifest, write_json
from competition.params import Member
from competition.params_file import in_training_order
from competition.remote import credentials, kernels, packing
from competition.remote.kaggle_client import Client, KaggleRefusal, ask, slug_of
from pipelines.stage import ROOT, Job, add_pick, kaggle_client, main, picked_folds, picked_members, shown

HOUR = 3600
INDEX = ("kernel", "index", "index.csv")
INLINE = 350_000  # bytes: a larger index does not fit into the kernel's one file, and goes as a dataset


def run(job: Job) -> None:
    """data/, params -> a private kernel; its output -> members/, tune/; kernel/: the notebook, and what is under way"""
    job.needs(job.path("data", "manifest.json"), "download")
    prepared = load_prepared(job.path("data"))
    tuned = {n: tuned_member(job.work, job.params, n, job.overrides) for n in in_training_order(job.params)}
    members = {name: member for name, (member, _) in tuned.items()}
    missing = {
        name: missing_folds(job, prepared, name, members[name]) for name in members if name in picked_members(job)
    }
    missing = {name: folds for name, folds in missing.items() if folds}
    state, client = job.path("kernel", "run.json"), None
    if not missing and not state.exists():
        job.say("kernel: current; every fold model that was asked for is here")
        return
    client = kaggle_client(job)
    if state.exists() and not job.options.force:
        told = json.loads(state.read_text(encoding="utf-8"))
        job.say(f"kernel: going on with run {told['run']}, version {told['version']} (FORCE=1 pushes anew)")
    else:
        to_tune = [name for name in missing if job.params.tune.trials and not tuned[name][1]]
        told = start(job, client, prepared, members, missing, to_tune)
        write_json(state, told)
    bring(job, client, prepared, members, told)
    state.unlink()


def missing_folds(job: Job, prepared: Prepared, name: str, member: Member) -> list[int]:
    def current(fold: int) -> bool:
        depends = fold_depends(job.work, prepared, job.params, member, fold)
        return not job.options.force and is_current(fold_model(job.work, name, fold), depends)

    return [fold for fold in picked_folds(job) if not current(fold)]


def start(
    job: Job,
    client: Client,
    prepared: Prepared,
    members: dict[str, Member],
    missing: dict[str, list[int]],
    to_tune: list[str],
) -> dict[str, Any]:
    """Pack, show the quota, push. Returns what must be known to bring the results home."""
    for name, folds in missing.items():
        job.say(f"kernel: {name}: folds {', '.join(map(str, folds))}")
    how, owner = job.params.kernel, job.params.kernel.owner or username(client)
    slug = how.slug or re.sub(r"[^a-z0-9]+", "-", f"goldfold-{job.params.competition.name}".lower()).strip("-")
    plan = plan_for(job, missing, to_tune)
    index = index_to_follow(job, prepared)
    fits = len(zlib.compress(index.read_bytes())) <= INLINE
    files = packing.files(ROOT, job.params, members)
    if fits:
        files[there(job, index)] = index.read_bytes()
    text = kernels.pack(files, plan)
    kernel = kernels.Kernel(
        owner,
        slug,
        how.machine,
        how.internet,
        slug_of(prepared.competition.slug) if prepared.competition.slug else "",
        how.datasets,
        plan.seconds,
    )
    folder = job.path("kernel", "notebook")
    kernels.write_folder(kernel, text, folder, as_notebook=True)
    job.say(f"kernel: for the browser, the same as a notebook: {shown(folder / f'{slug}.ipynb')}")
    show_quota(job, client)
    units = carried(job, members, missing) + ([] if fits else [there(job, index.parent)])
    if units:
        name = f"{owner}/{slug}-carried"
        job.say(f"kernel: {len(units)} results of earlier runs go with it, as the private dataset {name}")
        packs = kernels.carry(job.options.work.resolve().parent, units, job.path("kernel", "carried"))
        kernels.share(client, name, packs, plan.run, job.params.kaggle.score_wait)
        kernel = replace(kernel, datasets=(*kernel.datasets, name))
    pushed = kernels.push(client, kernel, text)
    job.say(f"kernel: run {plan.run} is version {pushed.version} of {pushed.url}")
    return {"run": plan.run, "force": job.options.force, "collect": plan.collect, **asdict(pushed)}


def username(client: Client) -> str:
    found = credentials.find(client.environment).username or ask(client, "whoami", {}, "this account")["username"]
    if not found:
        raise Refusal('Kaggle does not say whose credential this is: name the user, SET="kernel.owner=..."')
    return str(found)


def plan_for(job: Job, missing: dict[str, list[int]], to_tune: list[str]) -> kernels.Plan:
    how, work = job.params.kernel, job.options.work.name
    # Overrides are in the parameters already; said again, they win over what is tuned there, as they do here.
    sets = [f"{'.'.join(o.path)}={json.dumps(o.value)}" for o in job.overrides if o.path[0] in ("train", "members")]
    if job.params.competition.slug and not job.params.competition.miniature:
        sets.append(f"competition.source={{input:{known_file(job)}}}")

    def stage(name: str, *more: str) -> tuple[str, ...]:
        return ("-m", f"pipelines.{name}", "--params", packing.PARAMS, "--work", work, "--set", shlex.join(sets), *more)

    training = [
        stage(verb, "--member", name, "--fold", ",".join(map(str, folds)))
        for name, folds in missing.items()
        for verb in (("tune", "train") if name in to_tune else ("train",))
    ]
    like = there(job, job.path(*INDEX))
    before = [stage("download"), stage("prepare", "--like", like), stage("resolve")]
    commands = [*before, *training, stage("predict", "--allow-partial")]
    names = job.params.competition.name
    return kernels.Plan(
        run=f"{datetime.now(UTC):%Y%m%d-%H%M%S}",
        commands=tuple(commands),
        collect=tuple(f"{work}/{names}/{what}" for what in ("members/*/fold*", "tune/*")),
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
    with atomic(path) as temporary:
        save(choices(prepared.index), temporary)
    return path


def there(job: Job, path: Path) -> str:
    """A path below work/ as it is in the kernel, from the project's root."""
    return path.relative_to(job.options.work.parent).as_posix()


def known_file(job: Job) -> str:
    """A name at the top of the raw files, by which the kernel finds where Kaggle has put them."""
    raw = job.path("raw")
    return ADAPTERS[job.params.competition.adapter].sample(raw).relative_to(raw).parts[0]


def carried(job: Job, members: dict[str, Member], missing: dict[str, list[int]]) -> list[str]:
    """Folders to go on from: fold models cut short, and teachers whose pupils are trained there."""
    parts = [fold_model(job.work, name, fold).parent for name, folds in missing.items() for fold in folds]
    units = [folder for folder in parts if any(folder.glob("checkpoints/*.json"))]
    teachers = {teacher for name in missing for teacher in members[name].teacher}
    for name in sorted(teachers):
        folds = set(range(job.params.prepare.folds)) - set(missing.get(name, ()))
        units += [fold_model(job.work, name, fold).parent for fold in sorted(folds)]
    return [there(job, folder) for folder in units if folder.is_dir()]


def show_quota(job: Job, client: Client) -> None:
    """Hours left this week; none left is a refusal before anything is pushed."""
    try:
        quota = kernels.quota(client)
    except KaggleRefusal as refusal:
        job.say(f"kernel: the quota is not known ({refusal})")
        return
    tpu, gpu = quota.tpu_allowed - quota.tpu_used, quota.gpu_allowed - quota.gpu_used
    job.say(f"kernel: {tpu:.1f} h of TPU and {gpu:.1f} h of GPU are left this week (renewed {quota.refresh[:16]})")
    left = {"tpu": tpu, "gpu": gpu}.get(packing.accelerator(job.params.kernel.machine))
    if left is not None and left <= 0:
        raise Refusal(
            f"no hours on {job.params.kernel.machine} are left this week; they are renewed {quota.refresh[:16]} UTC"
        )


def bring(job: Job, client: Client, prepared: Prepared, members: dict[str, Member], told: dict[str, Any]) -> None:
    """Follow to the end, fetch what it left, put it where it belongs. Whatever was finished there is kept."""
    pushed = kernels.Pushed(told["owner"], told["slug"], told["version"], told["url"])
    how = job.params.kernel

    def on_log(text: str) -> None:
        for line in text.splitlines():
            job.say(f"kernel | {line}")

    ended = kernels.follow(client, pushed, on_log, (how.hours + 1) * HOUR, how.pause)
    if ended.status not in kernels.ENDED:
        raise Refusal(f"the kernel has not ended ({ended.status}); the same command goes on waiting, see {pushed.url}")
    job.say(f"kernel: {ended.status}" + (f": {ended.message}" if ended.message else ""))
    try:
        output = kernels.pull(client, pushed, told["run"], job.path("kernel", "output"))
    except KaggleRefusal:
        raise
    except Refusal as refusal:
        raise Refusal(f"{str(refusal).rstrip('.')}; `make kernel FORCE=1` pushes it anew") from None
    for unit in output.units:
        make_room(job, prepared, unit, bool(told["force"]) and output.status == "done")
    merged = kernels.merge(output, job.options.work.resolve().parent, told["collect"], job.params.kaggle.unpack_ratio)
    on = f" on {output.devices}" if output.devices else ""
    job.say(f"kernel: {output.status} after {output.seconds / 60:.0f} min{on}")
    say_merged(job, prepared, members, merged)
    if output.status == "failed":
        job.path("kernel", "run.json").unlink(missing_ok=True)
        raise Refusal(f"the kernel failed: {output.problem}; what it finished is here, its log says more: {pushed.url}")
    if output.status == "cut":
        job.say("kernel: its time was over; `make kernel` again goes on where it stopped")


def make_room(job: Job, prepared: Prepared, unit: str, force: bool) -> None:
    """A fold model that is here, but not as params want it, gives way to the one that comes."""
    name, fold = Path(unit).parts[-2], re.fullmatch(r"fold(\d+)", Path(unit).parts[-1])
    if fold is None or name not in job.params.members:
        return
    member, _ = tuned_member(job.work, job.params, name, job.overrides)
    manifest = fold_model(job.work, name, int(fold[1]))
    if force or not is_current(manifest, fold_depends(job.work, prepared, job.params, member, int(fold[1]))):
        manifest.unlink(missing_ok=True)


def say_merged(job: Job, prepared: Prepared, members: dict[str, Member], merged: kernels.Merged) -> None:
    def short(units: Sequence[str]) -> str:
        return ", ".join("/".join(Path(unit).parts[-2:]) for unit in units)

    for what, units in (("new here", merged.taken), ("unfinished", merged.partial), ("here before", merged.kept)):
        if units:
            job.say(f"kernel: {what}: {short(units)}")
    for unit in merged.taken:
        name, fold = Path(unit).parts[-2], re.fullmatch(r"fold(\d+)", Path(unit).parts[-1])
        if fold is None or name not in members:
            continue
        member, _ = tuned_member(job.work, job.params, name, job.overrides)
        wanted = fold_depends(job.work, prepared, job.params, member, int(fold[1]))
        made = read_manifest(fold_model(job.work, name, int(fold[1])))
        if made and (changes := differences(made.depends, wanted)):
            job.say(f"kernel: WARNING {name} fold {fold[1]} is not what is wanted here ({'; '.join(changes[:3])})")


if __name__ == "__main__":
    main(run, add_pick)

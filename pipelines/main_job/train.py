"""Train every fold model that is not current, in one process: a member is compiled once, its weights are reset between folds."""

from competition.config.teachers import in_training_order
from competition.workspace.runs import runs_of
from competition.workspace.scores import summary_lines
from competition.workspace.studies import finished_studies, member_with_tuned_values, study_differences
from pipelines.execution.cluster import train_on_cluster
from pipelines.execution.equal_runs import copy_equal_models
from pipelines.execution.open_trainer import start_device
from pipelines.execution.selection import selected_members
from pipelines.execution.training import train_run
from pipelines.terminal import hosts
from pipelines.terminal.job import Job
from pipelines.terminal.output import display_path


def run(job: Job) -> None:
    """data/, tune/ -> members/<member>/<run>/fold<k>/: weights.npz, history.csv, oof.npz, manifest.json"""
    _ = job.prepared  # an error before anything is started
    selected = selected_members(job)
    if not selected:
        job.echo("train: nothing to train, because every member was trained elsewhere")
        return
    if hosts.are_expected():
        start_device(job)  # the hosts decide together what is missing
    names = [name for name in in_training_order(job.params) if name in selected]
    for name in names:
        _, origins = member_with_tuned_values(job.workspace, name)
        if origins:
            job.echo(f"train {name}: " + ", ".join(f"{key} {value}" for key, value in origins.items()))
        if changes := study_differences(job.workspace, name):
            study = display_path(finished_studies(job.work, name)[-1].folder)
            tune = job.params.tune
            again = f"`make tune MEMBER={name}` repeats the study, and " if tune.trials and tune.folds else ""
            job.echo(
                f"train {name}: {study} is not used because the data or the member have changed since "
                f"({'; '.join(changes[:3])}); {again}removing the folder discards it"
            )
        for run in runs_of(job.workspace, name):
            copy_equal_models(job, run)
            if not job.options.cluster:
                train_run(job, run)
    if job.options.cluster:
        train_on_cluster(job, names)
    job.echo(*summary_lines(job.workspace, names))

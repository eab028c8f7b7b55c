"""Predict out-of-fold and test rows under every view by every fold model, once; the stages after it only use NumPy."""

from competition.workspace.runs import blended_runs
from pipelines.execution.cluster import predict_on_cluster
from pipelines.execution.open_trainer import start_device
from pipelines.execution.prediction import predict_folds, stale_folds
from pipelines.terminal import hosts
from pipelines.terminal.job import Job


def run(job: Job) -> None:
    """members/<member>/<run>/fold<k>/weights.npz -> members/<member>/<run>/fold<k>/views/<digest>/: oof.npz, test.npz"""
    if hosts.are_expected():
        start_device(job)  # the hosts decide together what is missing
    runs_by_name = blended_runs(job.workspace)
    pending = ((run, stale_folds(job, run, "@" in name)) for name, runs in runs_by_name.items() for run in runs)
    if job.options.cluster:
        predict_on_cluster(job, [(run, stale) for run, stale in pending if stale])
        return
    for run, stale in pending:
        if stale:
            predict_folds(job, run, stale)

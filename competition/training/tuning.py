"""Tune hyperparameters by Optuna, in a study that survives its process, and apply the values to a member."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from competition.artifacts.manifest import digest_of
from competition.config.errors import UserError
from competition.config.faults import point
from competition.config.params import Interval, Member
from competition.config.params_file import Override

FAILED_BY_ITS_SCORE = "failed"  # user attribute of a trial that ended without a finite score: the reason
Values = dict[str, Any]  # parameter -> number


def search(
    space: Mapping[str, Interval],
    trials: int,
    seed: int,
    made_from: str,
    journal: Path,
    evaluate: Callable[[Values, Callable[[float, int], bool]], float],
    progress: Callable[[int, int], None],
) -> tuple[Values, float, int]:
    """(best values, their score, number of finished trials). Finished trials of earlier processes count.

    evaluate(values, report) -> score, greater is better; report(score so far, step) -> True if the trial should be pruned.
    made_from: digest of everything a score depends on; a different digest starts a new study in the same journal.
    A trial whose process was killed is drawn again with the same values. Raises UserError if no trial gets a finite score.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal.parent.mkdir(parents=True, exist_ok=True)
    repair_journal(journal)
    name = digest_of([made_from, space])[:16]
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(journal))),
        study_name=name,
        direction="maximize",
        load_if_exists=True,
    )
    for interrupted in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        # Its process has ended, because this one holds the lock of the folder.
        study.tell(interrupted.number, state=TrialState.FAIL)
    finished = (TrialState.COMPLETE, TrialState.PRUNED)
    while (done := len(study.get_trials(deepcopy=False, states=finished))) < trials:
        progress(done, trials)
        # With one seed for all processes, a resumed study would sample the same points again. Killed trials do not count:
        # the next process draws the values of the killed one again.
        failures = sum(FAILED_BY_ITS_SCORE in trial.user_attrs for trial in study.get_trials(deepcopy=False))
        study.sampler = optuna.samplers.TPESampler(seed=zlib.crc32(f"{seed}/{done + failures}".encode()))
        trial = study.ask()
        values = {key: trial.suggest_float(key, i.low, i.high, log=i.log) for key, i in space.items()}

        def report(score: float, step: int, trial: Any = trial) -> bool:
            trial.report(score, step)
            return bool(trial.should_prune())

        point("tune.before_trial", journal)
        try:
            score = evaluate(values, report)
            if not isfinite(score):
                raise ArithmeticError(f"the score is {score}")
            point("tune.before_score", journal)
            study.tell(trial, score)
        except optuna.TrialPruned:
            study.tell(trial, state=TrialState.PRUNED)
        except ArithmeticError as error:
            trial.set_user_attr(FAILED_BY_ITS_SCORE, str(error))
            study.tell(trial, state=TrialState.FAIL)
            if failures + 1 >= 3 + trials:
                raise UserError(
                    f"{failures + 1} of {failures + 1 + done} trials have no finite score, the last one because {error}; "
                    "lower the range of learning_rate in tune.search, or set train.clip_norm"
                ) from None
    progress(trials, trials)
    best = study.best_trial
    return dict(best.params), float(best.value or 0.0), done


def repair_journal(path: Path) -> None:
    """Move a partial last line, left by a killed process, to <name>.torn: the next line would be appended to it."""
    if not path.exists():
        return
    data = path.read_bytes()
    complete = data.rfind(b"\n") + 1  # bytes
    if complete < len(data):
        path.with_suffix(".torn").write_bytes(data[complete:])
        with path.open("r+b") as file:
            file.truncate(complete)


def with_values(
    name: str, member: Member, tuned: Mapping[str, Any], overrides: Sequence[Override]
) -> tuple[Member, dict[str, str]]:
    """(member with the tuned values, key -> "value (origin)"). Overrides (SET) of this member or of all members win."""
    overridden = {key for key in tuned if any(_sets_train_key(override, name, key) for override in overrides)}
    used = {key: value for key, value in tuned.items() if key not in overridden}
    origins = {key: f"{used[key]:.3g} (tuned)" for key in used}
    origins |= {key: f"{getattr(member.train, key)} (SET)" for key in tuned if key in overridden}
    return replace(member, train=replace(member.train, **used)), origins


def _sets_train_key(override: Override, name: str, key: str) -> bool:
    """Return True if an override sets train.<key> of this member, directly or within a block."""
    for path in (("train", key), ("members", name, "train", key)):
        depth = len(override.path)
        if path[:depth] == override.path and _contains(override.value, path[depth:]):
            return True
    return False


def _contains(value: Any, path: tuple[str, ...]) -> bool:
    """Return True if the nested mapping `value` has an entry at `path`."""
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return True

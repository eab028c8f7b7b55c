"""Hyperparameters by Optuna: a study that survives its process, and how its values reach a member."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from competition.artifacts.manifest import digest_of
from competition.config.params import Interval, Member
from competition.config.params_file import Override

Values = dict[str, Any]  # numbers


def search(
    space: Mapping[str, Interval],
    trials: int,
    seed: int,
    made_from: str,
    journal: Path,
    evaluate: Callable[[Values, Callable[[float, int], bool]], float],
    progress: Callable[[int, int], None],
) -> tuple[Values, float, int]:
    """(best values, its score, finished trials). Finished trials of an earlier process are kept and counted.

    evaluate(values, report) -> score, greater is better; report(score so far, step) -> True when the trial is hopeless.
    made_from: digest of all that a score depends on; another one starts another study in the same journal.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal.parent.mkdir(parents=True, exist_ok=True)
    mend_journal(journal)
    name = digest_of([made_from, space])[:16]
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(journal))),
        study_name=name,
        direction="maximize",
        load_if_exists=True,
    )
    for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(left.number, state=TrialState.FAIL)  # its process is gone: the stage holds the folder's lock
    finished = (TrialState.COMPLETE, TrialState.PRUNED)
    failures = 0
    while (done := len(study.get_trials(deepcopy=False, states=finished))) < trials:
        progress(done, trials)
        # A sampler seeded alike in every process would propose the same points again.
        study.sampler = optuna.samplers.TPESampler(seed=zlib.crc32(f"{seed}/{len(study.trials)}".encode()))
        trial = study.ask()
        values = {key: trial.suggest_float(key, each.low, each.high, log=each.log) for key, each in space.items()}

        def report(score: float, step: int, trial: Any = trial) -> bool:
            trial.report(score, step)
            return bool(trial.should_prune())

        try:
            study.tell(trial, evaluate(values, report))  # a value that is no finite number fails the trial
        except optuna.TrialPruned:
            study.tell(trial, state=TrialState.PRUNED)
        except ArithmeticError:
            study.tell(trial, state=TrialState.FAIL)
            failures += 1
            if failures >= 3 + trials:
                raise
    progress(trials, trials)
    best = study.best_trial
    return dict(best.params), float(best.value or 0.0), done


def mend_journal(path: Path) -> None:
    """Cut a line torn by a killed process: the next line would be written behind it and poison the file for ever."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        path.with_suffix(".torn").write_bytes(data[whole:])
        with path.open("r+b") as file:
            file.truncate(whole)


def with_values(
    name: str, member: Member, found: Mapping[str, Any], overrides: Sequence[Override]
) -> tuple[Member, dict[str, str]]:
    """The member with tuned values in, and key -> "value (where from)". Overrides (SET) of this member or of all win."""
    by_hand = {key for key in found if any(_sets_train_key(override, name, key) for override in overrides)}
    used = {key: value for key, value in found.items() if key not in by_hand}
    origins = {key: f"{used[key]:.3g} (tuned)" for key in used}
    origins |= {key: f"{getattr(member.train, key)} (SET)" for key in found if key in by_hand}
    return replace(member, train=replace(member.train, **used)), origins


def _sets_train_key(override: Override, name: str, key: str) -> bool:
    """Whether an override gives train.<key> a value for this member: itself, or within a block."""
    for path in (("train", key), ("members", name, "train", key)):
        depth = len(override.path)
        if path[:depth] == override.path and _holds(override.value, path[depth:]):
            return True
    return False


def _holds(value: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True

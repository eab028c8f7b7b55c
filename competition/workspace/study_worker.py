"""Work on a member's study: its settings, the values it starts with, where it is stored, and the line of a trial."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from competition.config.errors import UserError, counted
from competition.config.search_space import Values, own_values
from competition.config.yaml_text import read_yaml
from competition.files.manifest import copy_file
from competition.preflight.planning import duration
from competition.tuning.choice import best_trial, finished_trials, format_values, score_of
from competition.tuning.settings import StudySettings, folds_used_in_tuning
from competition.tuning.storage import open_storage
from competition.workspace.studies import (
    continued_journal,
    finished_studies,
    read_result,
    study_name,
    tuning_dependencies,
    tuning_result_path,
)
from competition.workspace.workspace import Workspace

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial

MOST_EARLIER = 3  # values taken from earlier studies, and as many from relatives
EARLIER, FAMILY = "earlier", "family"


def study_settings(workspace: Workspace, name: str, workers: int = 1) -> StudySettings:
    """The study that the block `tune` describes for a member.  workers: processes that share the time limit."""
    params = workspace.params
    tune, member = params.tune, params.members[name]
    depends, starts = tuning_dependencies(workspace, name), warm_starts(workspace, name)
    folds = sorted({*folds_used_in_tuning(params), *(fold for _, of_start in starts for fold in of_start)})
    own, points = own_values(member, tune.search), [values for values, _ in starts]
    return StudySettings(study_name(name, depends), tune, own, points, folds, workers)


def warm_starts(workspace: Workspace, name: str) -> list[tuple[Values, list[int]]]:
    """Values to try first, with the folds that chose them, from the sources in tune.warm_start.

    earlier: the newest studies of the member on these data, but for this very one. family: those of members with the same
    architecture up to its first digit: EfficientNetB6 and EfficientNetB4. Values outside the search space are left out; a
    parameter that a source does not state is drawn by the sampler.
    """
    params, search = workspace.params, workspace.params.tune.search
    family = {other: re.split(r"\d", member.architecture)[0] for other, member in params.members.items()}
    relatives = {
        EARLIER: [name],
        FAMILY: [other for other in family if other != name and family[other] == family[name]],
    }
    own = tuning_result_path(workspace.folder, name, tuning_dependencies(workspace, name))
    values_with_folds: list[tuple[Values, list[int]]] = []
    for source in params.tune.warm_start:
        if source not in relatives:
            values_with_folds += read_warm_start(Path(source))
            continue
        studies = [study for each in relatives[source] for study in finished_studies(workspace.folder, each)]
        contents = [read_result(study) for study in reversed(studies) if study != own]
        of_these_data = [best for best in contents if best.get("data") == workspace.prepared.digest]
        values_with_folds += [(best["values"], best["folds"]) for best in of_these_data[:MOST_EARLIER]]
    starts: list[tuple[Values, list[int]]] = []

    def is_inside(key: str, value: Any) -> bool:
        if key not in search or search[key].choices:
            return key in search and value in search[key].choices
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (search[key].low or 0.0) <= value <= (search[key].high or 0.0)

    for values, folds in values_with_folds:
        inside = {key: value for key, value in values.items() if is_inside(key, value)}
        if inside and inside not in [start for start, _ in starts]:
            starts.append((inside, folds))
    return starts


def read_warm_start(path: Path) -> list[tuple[Values, list[int]]]:
    """Values from a YAML or JSON file: {values: {...} or a list of them, folds: [...]}, as best.json of a study has.

    Raises UserError if the file does not say which folds chose the values: their rows are in no honest score.
    """
    if not path.is_file():
        raise UserError(f"tune.warm_start: {path} is not there; expected {EARLIER}, {FAMILY} or a YAML or JSON file")
    content = read_yaml(path)
    values, folds = content.get("values"), content.get("folds")
    points = [point for point in (values if isinstance(values, list) else [values]) if isinstance(point, dict)]
    if not points or not isinstance(folds, list):
        expected = (
            "`values:` with parameters and `folds:` whose labels chose them, [] if no row of this competition did"
        )
        raise UserError(f"tune.warm_start: {path} was found without values or folds; expected {expected}")
    return [(dict(point), [int(fold) for fold in folds]) for point in points]


def storage_of(workspace: Workspace, name: str) -> "BaseStorage":
    """The storage of a member's study: tune.storage, or its journal on this machine."""
    storage = workspace.params.tune.storage
    return open_storage(storage, Path() if storage else journal_of(workspace, name))


def journal_of(workspace: Workspace, name: str) -> Path:
    """The journal file of a member's study on this machine; a copy of that of fewer trials if the study continues it."""
    depends = tuning_dependencies(workspace, name)
    result = tuning_result_path(workspace.folder, name, depends)
    journal = result.with_name("study.log")
    if not journal.exists() and (earlier := continued_journal(result, name, depends)):
        copy_file(earlier, journal)  # more trials continue the same study
    return journal


def trial_line(study: "Study", trial: "FrozenTrial", settings: StudySettings, sign: int) -> str:
    """trial 4 complete .8123 (learning_rate .0012); best .8231 (trial 2); 5 of 20 trials done, about 3 min left

    sign: -1 if less is better in the metric.
    """
    trials = finished_trials(study.get_trials(deepcopy=False), settings)
    best, facts = best_trial(trials), trial.user_attrs
    if "diverged" in facts:
        state = "diverged"
    elif trial.state.name == "COMPLETE":
        state = f"complete {sign * trial.values[0]:.4f}"
    else:
        last = trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else float("nan")
        state = f"{trial.state.name.lower()} at {sign * last:.4f} after {facts.get('share', 0):.0%}"
    seconds = sum(each.duration.total_seconds() for each in trials if each.duration)
    seconds_left = (settings.total - len(trials)) * seconds / max(len(trials), 1)
    best_text = f"best {sign * score_of(best):.4f} (trial {best.number})" if best is not None else "none complete yet"
    remaining = f", about {duration(seconds_left / settings.workers)} left" if len(trials) < settings.total else ""
    return (
        f"trial {trial.number} {state} ({format_values(trial.params)}); {best_text}; "
        f"{len(trials)} of {counted(settings.total, 'trial')} done{remaining}"
    )

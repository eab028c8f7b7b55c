"""Work on a member's study: its settings, the values it starts with, where it is stored, and the line of a trial."""

import re
from typing import TYPE_CHECKING, Any

from competition.config.digests import digest_of
from competition.config.errors import counted
from competition.config.search_space import Values, own_values
from competition.preflight.planning import duration
from competition.tuning.choice import best_trial, finished_trials, format_values, score_of
from competition.tuning.settings import StudySettings
from competition.tuning.storage import open_storage
from competition.workspace.studies import finished_studies, tuning_dependencies, tuning_result_path
from competition.workspace.workspace import Workspace

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

STOPPING_RULES = ("trials", "hours", "patience", "confirm_seeds")  # a study continues when they change
MOST_EARLIER = 3  # studies whose values are taken for each source of tune.warm_start


def study_settings(workspace: Workspace, name: str, workers: int = 1) -> StudySettings:
    """The study that the block `tune` describes for a member.  workers: processes that share the time limit."""
    tune, member = workspace.params.tune, workspace.params.members[name]
    depends, starts = tuning_dependencies(workspace, name), warm_starts(workspace, name)
    same = {key: value for key, value in depends.items() if key not in STOPPING_RULES}
    folds = sorted({*tune.folds, *(fold for _, of_start in starts for fold in of_start)})
    own, points = own_values(member, tune.search), [values for values, _ in starts]
    return StudySettings(f"{name}-{digest_of(same)[:16]}", tune, own, points, folds, workers)


def warm_starts(workspace: Workspace, name: str) -> list[tuple[Values, list[int]]]:
    """Values to try first, with the folds that chose them, from the sources in tune.warm_start.

    earlier: the newest studies of the member on these data, except the one that starts. family: those of members with the same
    architecture up to its first digit: EfficientNetB6 and EfficientNetB4. Values outside the search space are left out; a
    parameter that a source does not state is drawn by the sampler.
    """
    search = workspace.params.tune.search
    family = {other: re.split(r"\d", one.architecture)[0] for other, one in workspace.params.members.items()}
    relatives = [other for other in family if other != name and family[other] == family[name]]
    own = tuning_result_path(workspace.folder, name, tuning_dependencies(workspace, name)).parent

    def is_inside(key: str, value: Any) -> bool:
        if key not in search or search[key].choices:
            return key in search and value in search[key].choices
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (search[key].low or 0.0) <= value <= (search[key].high or 0.0)

    starts: list[tuple[Values, list[int]]] = []
    for source in workspace.params.tune.warm_start:
        names = [name] if source == "earlier" else relatives
        studies = [study for each in names for study in finished_studies(workspace.folder, each)]
        results = [study.result for study in reversed(studies) if study.folder != own]
        of_these_data = [result for result in results if result["data"] == workspace.prepared.digest]
        for result in of_these_data[:MOST_EARLIER]:
            inside = {key: value for key, value in result["values"].items() if is_inside(key, value)}
            if inside and inside not in [start for start, _ in starts]:
                starts.append((inside, result["folds"]))
    return starts


def study_of(workspace: Workspace, name: str, settings: StudySettings) -> "Study":
    """A member's study in tune.storage, or in its journal on this machine, created if it does not exist yet."""
    from competition.tuning.study import open_study

    journal = workspace.folder / "tune" / name / settings.name / "study.log"
    return open_study(open_storage(settings.tune.storage, journal), settings)


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

"""The folder of one competition with the parameters that its results are made with: what every stage works on."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from competition.config.digests import to_plain
from competition.config.errors import UserError
from competition.config.params import Params
from competition.config.params_file import Override
from competition.files.manifest import Manifest, changed_keys, display_path, read_manifest

if TYPE_CHECKING:  # pandas is imported by the stages that need it
    from competition.prepare.prepared import Prepared


@dataclass(frozen=True)
class Workspace:
    """Results of one competition under one set of parameters. Prints nothing."""

    folder: Path  # work/<competition>
    params: Params
    overrides: tuple[Override, ...] = ()  # of SET: they win over tuned values
    loaded: "Prepared | None" = None  # the prepared data; None = read when they are first used

    @cached_property
    def prepared(self) -> "Prepared":
        """The prepared data with the metric of the parameters.

        Raises UserError if they are missing, if members would be trained on images that there are not, or if they were prepared with
        other parameters: other folds have other fold models, another label column or target is another task.
        """
        if self.loaded is not None:
            return self.loaded
        from competition.prepare.adapter_types import changes_of_task, settings_of
        from competition.prepare.index import require_images
        from competition.prepare.prepared import load_prepared

        manifest = self.require(self.folder / "data" / "manifest.json")
        competition, now = self.params.competition, to_plain(self.params.prepare)
        recorded = manifest.depends.get("prepare", now)
        # A parameter that did not exist when the data were prepared had no effect on them.
        now = {key: value for key, value in now.items() if key in recorded}
        changes = changed_keys({"prepare": recorded}, {"prepare": now})
        loaded = load_prepared(self.folder / "data", competition.metric, competition.predicts)
        recorded = manifest.depends.get("competition", {})
        changes += changes_of_task(settings_of(self.params), recorded, loaded.competition.target)
        if changes:
            raise UserError(
                f"the data were prepared with other parameters ({'; '.join(changes[:3])}); `make download` prepares them again "
                "(or repeat the SET that they were prepared with)"
            )
        require_images(loaded.index, self.params.members)
        return replace(loaded, plugins=self.params.plugins)

    def with_params(self, params: Params) -> "Workspace":
        """The same folder and data under other parameters."""
        return replace(self, params=params, loaded=self.prepared)

    def with_blended(self, *names: str) -> "Workspace":
        """The same with these members, or stored runs, in blend.members."""
        return self.with_params(replace(self.params, blend=replace(self.params.blend, members=names)))

    def require(self, manifest: Path) -> Manifest:
        """Return a manifest that `make download` writes. Raises UserError if it is missing."""
        result = read_manifest(manifest)
        if result is None:
            raise UserError(
                f"{display_path(manifest)} is missing: this stage needs the results of `make download`; run it first, or name "
                "another parameter file (PARAMS)"
            )
        return result

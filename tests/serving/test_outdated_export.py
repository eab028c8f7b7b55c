"""An export stays as it is when its models or its blend change, and the server says so."""

from dataclasses import replace

from stages import Workspace

from competition.config.params_file import load_params
from competition.serving.bundle import load_bundle
from competition.workspace import workspace as library
from pipelines.serving.serve import outdated_lines
from pipelines.terminal.options import Options
from pipelines.terminal.runner import Job


def test_the_server_says_that_the_blend_or_the_data_are_no_longer_those_of_the_export(exported: Workspace) -> None:
    bundle = load_bundle(exported.work / "export" / "blend")
    workspace = library.Workspace(exported.work, load_params(exported.params))
    job = Job(workspace, Options(), exported.submissions)
    assert outdated_lines(job, bundle, []) == []
    (line,) = outdated_lines(job, replace(bundle, data="before a label was corrected"), [])
    assert "from other data" in line
    (line,) = outdated_lines(job, replace(bundle, digest="of other weights"), [])
    assert "an earlier blend" in line and "`make export` makes it again" in line

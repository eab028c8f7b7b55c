"""One model trained by several hosts (JAX): processes of this machine that are stopped one by one."""

import signal

import pytest
from host_processes import SETS, results_of, start_hosts
from stages import Workspace

pytest.importorskip("jax", reason="several hosts need JAX (goldfold[jax])")
pytestmark = pytest.mark.timeout(900)
TRAIN = ("train", "--member", "slim", "--fold", "0")


@pytest.mark.long
def test_two_hosts_in_one_folder_stop_together_and_continue_and_only_the_first_one_writes(untrained: Workspace) -> None:
    sets = SETS.format(epochs=4)
    hosts = start_hosts([untrained] * 2, *TRAIN, sets=sets)
    hosts.stop_one(1, signal.SIGTERM, 0)
    outputs = hosts.wait()
    assert [code for code, _, _ in outputs] == [143, 143], outputs
    reached = hosts.newest_step()
    assert reached and not results_of(untrained)
    assert f"stopped after step {reached} of" in outputs[0][1] and "stopped after" not in outputs[1][1]
    outputs = start_hosts([untrained] * 2, *TRAIN, sets=sets).wait()
    assert [code for code, _, _ in outputs] == [0, 0], outputs
    assert ["held-out rows" in out for _, out, _ in outputs] == [True, False]
    assert len(results_of(untrained)) == 3 and hosts.newest_step() == 0

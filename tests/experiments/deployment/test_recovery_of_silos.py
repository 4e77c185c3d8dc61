"""Silos that come back, copies of silos, wrong clocks, full disks: nothing is counted or charged twice."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from experiments.deployment.control import Coordinator, control, register
from experiments.provision.keys import new_key, openssh, openssh_public
from tests.experiments.deployment.oracle import check, releases
from tests.experiments.deployment.parts import Part
from tests.experiments.deployment.runs import LAST, Run
from tests.experiments.deployment.scenarios import full
from tests.experiments.deployment.stack import Stack
from tests.experiments.tiny import history

Begin = Callable[..., Run]
Outcome = Callable[[object], None]
pytestmark = [pytest.mark.slow, full]
CODE_FAILED = "(code 2)"


# --- a silo that was away -----------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "erased"])
def test_a_silo_that_comes_back_epochs_later(stack: Stack, begin: Begin, outcome: Outcome, *, kept: bool) -> None:
    run, node = begin(rounds=4, **{"deadline.train": 45.0}), stack.nodes[LAST]
    run.until_unmasking(1)
    node.terminate()
    run.until_done(2)
    if not kept:
        shutil.rmtree(run.home(LAST) / "runs" / run.run_id)
    node.start()
    run.finish()
    found = check(stack, run.path, faulty=[LAST])
    assert found.lost, "the silo was never away"
    if not kept:
        # Its share-encryption key of the run is gone: it sits the rest out, and its ledger still knows what was spent.
        assert history(run.path)[-1]["survivors"] == len(stack.names) - 1
    outcome(found)


def test_a_silo_away_while_the_coordinator_resumes(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    run, node = begin(rounds=4, **{"deadline.train": 45.0}), stack.nodes[LAST]
    run.until_unmasking(1)
    node.terminate()
    stack.server_app().kill()
    run.until_done(2)
    node.start()
    run.finish()
    found = check(stack, run.path, faulty=[LAST])
    assert found.lost
    assert history(run.path)[-1]["survivors"] == len(stack.names)
    outcome(found)


# --- copies -------------------------------------------------------------------------------------------


def copy_of(stack: Stack, silo: int, name: str) -> Path:
    home = stack.root / name
    shutil.copytree(stack.home(stack.names[silo]), home, ignore=shutil.ignore_patterns("node.*", "silo.lock"))
    return home


@contextmanager
def beside(node: Part) -> Iterator[Part]:
    """Run another node than the deployment's own until the block ends."""
    node.start()
    try:
        yield node
    finally:
        node.terminate()


def test_a_copy_with_the_same_node_key(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    copy = stack.node("copy", copy_of(stack, LAST, "same-key"))
    with beside(copy):
        run = begin()
        stack.wait(lambda: not copy.running, "the copy to be refused")
        assert "another process uses it" in copy.said()
        assert "connected" not in copy.said()
        run.finish()
    outcome(f"the copy is refused; {check(stack, run.path)}")


def test_a_copy_with_another_node_key(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    home, own = copy_of(stack, LAST, "other-key"), stack.home(stack.names[LAST])
    key = new_key()
    (home / "supernode.key").write_bytes(openssh(key))
    public = stack.root / "copy.pub"
    public.write_text(openssh_public(key) + " copy\n", encoding="utf-8")
    with control(Coordinator(stack.link_address, stack.project.ca_file)) as client:
        register(client, [public])
    copy = stack.node("twin", home)
    with beside(copy):
        stack.wait(lambda: "connected" in copy.said(), "the copy to connect")
        run = begin()
        run.finish()
    if releases(home, run.run_id) or not releases(own, run.run_id):
        # The copy was first. What it spent counts: its ledger is the one the others have seen.
        for name in ("ledger.jsonl", "ledger.anchor"):
            assert (home / name).stat().st_size > 0
            shutil.copyfile(home / name, own / name)
    found = check(stack, run.path)
    assert "two nodes enrol as silo-03" in (run.path / "flower.log").read_text(encoding="utf-8")
    outcome(f"one of the two is left out; {found}")


# --- clocks -------------------------------------------------------------------------------------------


def test_a_clock_that_is_behind(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    stack.nodes[LAST].terminate()
    with beside(stack.node("late", stack.home(stack.names[LAST]), skew=-120.0)) as node:
        stack.wait(lambda: "connected" in node.said(), "the silo to connect")
        run = begin()
        run.finish()
    outcome(f"two minutes: {check(stack, run.path)}")


def test_a_clock_that_is_ahead(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    stack.nodes[LAST].terminate()
    with beside(stack.node("early", stack.home(stack.names[LAST]), skew=60.0)) as node:
        stack.wait(lambda: not node.running, "the silo to be refused")
        assert "set the clock" in node.said()
    run = begin()
    stack.nodes[LAST].start()
    run.finish()
    outcome(f"one minute: the node stops and names the clock; set right, {check(stack, run.path)}")


# --- disks --------------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Put a folder's content on a file system of its own; yields a file that fills it once it is written."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    held = folder.with_name(f"{folder.name}.held")
    folder.mkdir(exist_ok=True, parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "none", str(folder)]
    shutil.copytree(folder, held)
    if subprocess.run(command, check=False, capture_output=True).returncode:
        shutil.rmtree(held)
        pytest.skip("no file system can be mounted here")
    shutil.copytree(held, folder, dirs_exist_ok=True)
    try:
        yield folder / "filler"
    finally:
        (folder / "filler").unlink(missing_ok=True)
        shutil.rmtree(held)
        shutil.copytree(folder, held)
        subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.copytree(held, folder, dirs_exist_ok=True)
        shutil.rmtree(held)


def fill(file: Path) -> None:
    """Write until nothing fits any more."""
    with file.open("wb", buffering=0) as output:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    output.write(bytes(size))
            except OSError:
                continue


def test_a_full_disk_at_a_silo(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    node, home = stack.nodes[LAST], stack.home(stack.names[LAST])
    node.terminate()
    with small_disk(home, 64) as filler:
        node.start()
        run = begin(rounds=3)
        run.until_done(1)
        fill(filler)
        run.until_done(2)
        filler.unlink()
        run.finish()
        found = check(stack, run.path, faulty=[LAST])
        node.terminate()
    assert found.lost
    outcome(found)


def test_a_full_disk_at_the_coordinator(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    with small_disk(stack.root / "runs" / "test-a-full-disk-at-the-coordinator", 64) as filler:
        run = begin()
        run.until_announced(1)
        app = stack.server_app()
        fill(filler)
        stack.wait(lambda: not app.is_running() or app.status() == "zombie", "the ServerApp to stop")
        filler.unlink()
        run.finish()
        outcome(check(stack, run.path))

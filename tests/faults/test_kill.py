"""kill -9 at any moment: what goes on from there ends bit for bit like a run never stopped."""

import random
import shutil
import signal
import time

import pytest
from trainer import EPOCHS, STEPS, AtByte, AtOperation, code, network, start, train

SIZES = (1, 4_096, 100_000, 250_000)  # bytes of a checkpoint that were written


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The network of a run never stopped, and the seconds it takes."""
    folder = tmp_path_factory.mktemp("whole")
    assert code(train, folder / "warm", folder / "taken") == 0
    begin = time.monotonic()
    assert code(train, folder / "run", folder / "taken") == 0
    return network(folder / "run"), time.monotonic() - begin


def ends(whole, folder, kills):
    """Go on to the end; return the steps that had to be taken again."""
    assert code(train, folder / "run", folder / "taken") == 0
    assert network(folder / "run") == whole[0]
    left = [path.name for path in (folder / "run").glob(".*")]
    assert left in ([], [".lock"]), "half-written files are left"
    redone = (folder / "taken").stat().st_size - EPOCHS * STEPS
    assert 0 <= redone <= STEPS * kills, "more than an epoch a kill is lost"
    return redone


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_before_each_change_of_a_file(whole, tmp_path, faults, stride):
    kills, steps = 0, 0
    for number in range(1, 1000, stride):
        folder = tmp_path / str(number)
        folder.mkdir()
        ended = code(train, folder / "run", folder / "taken", AtOperation(number))
        if ended == 0:  # fewer operations than that
            break
        assert ended == -signal.SIGKILL
        kills += 1
        steps += ends(whole, folder, 1)
    assert kills * stride > 40
    faults("SIGKILL before each change of a file", kills, kills, steps)


@pytest.mark.parametrize("after", [2, *(pytest.param(s, marks=pytest.mark.slow) for s in (7, 14))])
def test_in_the_midst_of_a_checkpoint(whole, tmp_path, faults, after):
    steps = 0
    for size in SIZES:
        folder = tmp_path / str(size)
        folder.mkdir()
        ended = code(train, folder / "run", folder / "taken", AtByte(after, size))
        assert ended == -signal.SIGXFSZ
        steps += ends(whole, folder, 1)
    faults("SIGXFSZ in the midst of a write", len(SIZES), len(SIZES), steps)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("wanted", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_at_random_moments_again_and_again(whole, tmp_path, faults, wanted, number):
    rng, kills, steps = random.Random(wanted), 0, 0
    while kills < wanted:
        folder = tmp_path / str(kills)
        folder.mkdir()
        here = 0
        while not (folder / "run/model.safetensors").exists():
            process = start(train, folder / "run", folder / "taken")
            process.join(rng.uniform(0, whole[1]))
            process.kill() if number == signal.SIGKILL else process.terminate()
            process.join()
            here += process.exitcode in (-number, 128 + number)
        if here:
            kills += here
            steps += ends(whole, folder, here)
        else:  # it was quicker than we
            shutil.rmtree(folder)
    faults(f"{signal.Signals(number).name} at a random moment", kills, kills, steps)

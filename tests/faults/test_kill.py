"""kill -9 at any moment: the resumed run ends bit for bit like one that was never stopped."""

import random
import shutil
import signal
import time

import pytest
from trainer import EPOCHS, STEPS, AtByte, AtOperation, code, network, start, train

SIZES = (1, 4_096, 100_000, 250_000)  # bytes of a checkpoint written before the kill


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The network of a run that was never stopped, and the seconds it took."""
    folder = tmp_path_factory.mktemp("whole")
    assert code(train, folder / "warm", folder / "taken") == 0
    begin = time.monotonic()
    assert code(train, folder / "run", folder / "taken") == 0
    return network(folder / "run"), time.monotonic() - begin


def resume(whole, folder, kills):
    """Resume to the end; return the number of steps that were repeated."""
    assert code(train, folder / "run", folder / "taken") == 0
    assert network(folder / "run") == whole[0]
    assert not list((folder / "run").glob(".*.*")), "temporary files are left"
    repeated = (folder / "taken").stat().st_size - EPOCHS * STEPS
    assert 0 <= repeated <= STEPS * kills, "more than one epoch per kill is lost"
    return repeated


@pytest.mark.parametrize("stride", [18, pytest.param(1, marks=pytest.mark.slow)])
def test_kill_before_each_change_of_a_file(whole, tmp_path, faults, stride):
    kills, steps = 0, 0
    for number in range(1, 1000, stride):
        folder = tmp_path / str(number)
        folder.mkdir()
        ended = code(train, folder / "run", folder / "taken", AtOperation(number))
        if ended == 0:  # there are fewer operations
            break
        assert ended == -signal.SIGKILL
        kills += 1
        steps += resume(whole, folder, 1)
    assert kills * stride > 40
    faults("SIGKILL before each change of a file", kills, kills, steps)


@pytest.mark.parametrize("after", [2, *(pytest.param(s, marks=pytest.mark.slow) for s in (7, 14))])
def test_kill_while_a_checkpoint_is_written(whole, tmp_path, faults, after):
    steps = 0
    for size in SIZES:
        folder = tmp_path / str(size)
        folder.mkdir()
        ended = code(train, folder / "run", folder / "taken", AtByte(after, size))
        assert ended == -signal.SIGXFSZ
        steps += resume(whole, folder, 1)
    faults("SIGXFSZ during a write", len(SIZES), len(SIZES), steps)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("wanted", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_repeated_kills_at_random_moments(whole, tmp_path, faults, wanted, number):
    rng, kills, steps = random.Random(wanted), 0, 0
    while kills < wanted:
        folder = tmp_path / str(kills)
        folder.mkdir()
        count = 0
        while not (folder / "run/model.safetensors").exists():
            process = start(train, folder / "run", folder / "taken")
            process.join(rng.uniform(0, 2 * whole[1]))  # a resume takes time too
            process.kill() if number == signal.SIGKILL else process.terminate()
            process.join()
            count += process.exitcode in (-number, 128 + number)
        if count:
            kills += count
            steps += resume(whole, folder, count)
        else:  # it ended before the signal
            shutil.rmtree(folder)
    faults(f"{signal.Signals(number).name} at a random moment", kills, kills, steps)

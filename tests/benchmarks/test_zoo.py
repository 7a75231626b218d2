"""benchmarks/zoo.py: a run directory becomes a packed file and a card."""

import json
import shlex

import pytest
import zoo

from spikewire.config import resolve
from spikewire.formats import packed
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import fit
from spikewire.zoo import card


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["zoo.py", *map(str, words)])
    zoo.main()


def test_a_run_becomes_an_entry_by_one_command(tmp_path, monkeypatch, capsys):
    start = {"method": "budget", "connectivity": "0.2", "epochs": "2", "threads": "1"}
    fit(resolve("digits", flags=start), tmp_path / "a")
    more = {**start, "connectivity": "0.1225", "start": str(tmp_path / "a")}
    fit(resolve("digits", flags=more), tmp_path / "b")
    run(monkeypatch, tmp_path / "b", "--out", tmp_path / "zoo")
    assert capsys.readouterr().out.startswith("zoo:digits-12.25 ")
    found = json.loads((tmp_path / "zoo" / "digits-12.25.json").read_text())
    file = tmp_path / "zoo" / "digits-12.25.packed.safetensors"
    assert found["connectivity"] == packed.read(file).connectivity
    assert found["bytes"] == file.stat().st_size
    assert found["accuracy"] == pytest.approx(found["trained_accuracy"], abs=0.01)
    assert len(found["commands"]) == 2, "the run that it started from, and its own"
    assert found.keys() == vars(card("digits-5")).keys()
    histories = [RunDir.open(tmp_path / name).history() for name in "ab"]
    seconds = sum(row["seconds"] for rows in histories for row in rows)
    assert found["seconds"] == pytest.approx(seconds, abs=0.01)


def test_a_folder_that_is_no_run_is_refused(tmp_path, monkeypatch):
    with pytest.raises(zoo.SpikewireError, match="not a finished run"):
        run(monkeypatch, tmp_path)
    with pytest.raises(zoo.SpikewireError, match="--name: 'x' is not allowed"):
        run(monkeypatch, tmp_path, tmp_path, "--name", "x")


def test_a_command_on_a_card_is_the_same_on_every_machine():
    command = "spikewire train --start /data/me/a --data-dir /data --out /home/me/b --seed 1"
    found = " ".join(zoo.portable_words(shlex.split(command)))
    assert found == "spikewire train --start runs/a --out runs/b --seed 1"


def test_a_run_that_started_from_the_zoo_has_the_commands_of_that_network_first(tmp_path):
    flags = {"method": "budget", "connectivity": "0.02", "epochs": "1", "start": "zoo:digits-5"}
    fit(resolve("digits", flags={**flags, "threads": "1"}), tmp_path / "a")
    *before, own = zoo.commands(zoo.load_run(tmp_path / "a"))
    assert before == list(card("digits-5").commands)
    assert zoo.seconds_in_all(zoo.load_run(tmp_path / "a")) is None, "that of the start is unknown"
    words = "train --start zoo:digits-5 --teacher zoo:digits-2"
    assert list(zoo.portable_words(words.split())) == words.split()
    assert own.startswith("spikewire")


def test_names_have_no_zeros_at_the_end():
    assert [zoo.short_percent(x) for x in (0.0225, 0.00746, 0.05, 1.0)] == [
        "2.25",
        "0.75",
        "5",
        "100",
    ]

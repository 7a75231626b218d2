"""Run directories are untrusted input: damage is refused, or it changes nothing."""

import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from trainer import network

from spikewire.cli import main

FILES = ("config.toml", "env.json", "metrics.jsonl", "traces.npz", "checkpoint.pt")
RESUME = ["train", "--resume", "run"]
COMMANDS = (RESUME, ["eval", "run"], RESUME, ["export", "run"], RESUME, ["report", "run"])
TEXTS = (
    b"", b"\0", b"{}", b"[]", b"5\n5\n", b"null", b"[" * 100_000, b'{"epoch": "x"}\n', b"\xff\xfe",
    b'{"epoch": 1}\n', b'{"epoch": 1e999}\n{}\n', b'{"epoch":' * 10_000, b'seed = "\\u0000"',
    b'dataset = "digits"\n', b"epochs = 1e400", b'{"threads": 1000000000}',
    b'{"command": ["x", "\\ud800"]}', b"PK\3\4", b"\x80\4.",
)  # fmt: skip


def damage(path: Path, rng: random.Random) -> str:
    """Damage one file of a run in one of several ways; return which."""
    content = path.read_bytes()
    kind = rng.choice(
        ["truncate", "bits", "bytes", "text", "swap", "remove", "folder", "link", "extend"]
    )
    changed = bytearray(content)
    if kind == "bits":
        changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "bytes":
        for _ in range(8):
            changed[rng.randrange(len(content))] = rng.randrange(256)
    elif kind == "truncate":
        del changed[rng.randrange(len(content)) :]
    elif kind == "extend":
        changed += rng.choice([b"\0", b"\n", content])
    elif kind == "text":
        changed = rng.choice(TEXTS)
    elif kind == "swap":
        changed = path.with_name(rng.choice(sorted(os.listdir(path.parent)))).read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(rng.choice([path.name, "nowhere", "/dev/null", ".", "env.json"]))
    elif kind != "remove":
        path.write_bytes(changed)
    return kind


def run_command(words, capsys, about):
    """Run a command; it must work, or print in one line why it does not."""
    code = main(words)
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if not line.startswith("spikewire: warning: ")]
    assert (code, len(lines)) in ((0, 0), (2, 1), (1, 1)), (about, err)
    return code


@pytest.mark.parametrize("count", [40, pytest.param(800, marks=pytest.mark.slow)])
def test_a_damaged_run_is_refused_or_gives_the_same_network(
    intact, tmp_path, monkeypatch, capsys, faults, count
):
    monkeypatch.chdir(tmp_path)
    refused = 0
    for case in range(count):
        rng = random.Random(case)
        words = COMMANDS[case % len(COMMANDS)]
        state = "stopped" if words[0] == "train" else "finished"
        shutil.copytree(intact / state, "run")
        file = rng.choice(FILES if state == "stopped" else (*FILES[:-1], "model.safetensors"))
        about = (case, words[0], file, damage(Path("run", file), rng))
        code = run_command(words, capsys, about)
        if words[0] == "train" and code == 0:
            assert network(Path("run")) == network(intact / "finished"), about
        refused += code == 2
        shutil.rmtree("run")
    assert 0.2 < refused / count < 0.9
    faults("damaged file in a run directory", count, count)


def change(state, *keys, value):
    """Set an item of a nested state."""
    for key in keys[:-1]:
        state = state[key]
    state[keys[-1]] = value


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["state"], {}),
        (["state"], 5),
        (["state", "position", "epoch"], 10**9),
        (["state", "position", "epoch"], -1),
        (["state", "position", "batch"], 10**9),
        (["state", "position", "batch"], "x"),
        (["state", "model"], {}),
        (["state", "model", "fc1.weight"], torch.zeros(2, 2)),
        (["state", "model", "fc1.weight"], None),
        (["state", "optimizer"], []),
        (["state", "pruner"], {"layers": 7}),
        (["state", "rng"], {"cpu": torch.zeros(3)}),
        (["state", "pruner", "seen"], 1),
        (["config"], 5),
    ],
)
def test_a_complete_checkpoint_with_another_state_is_refused(
    intact, tmp_path, monkeypatch, capsys, faults, keys, value
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(intact / "stopped", "run")
    saved = torch.load("run/checkpoint.pt", weights_only=True)
    change(saved, *keys, value=value)
    torch.save(saved, "run/checkpoint.pt")
    assert main(RESUME) == 2
    assert capsys.readouterr().err.count("\n") == 1
    faults("hostile run directory", 1, 1)


@pytest.mark.parametrize("name", [b"<script> %s \x1b[31m $(id)", b"\xff"])
def test_a_directory_may_have_any_name(intact, tmp_path, monkeypatch, capsys, faults, name):
    monkeypatch.chdir(tmp_path)
    run = os.fsdecode(name)
    shutil.copytree(intact / "stopped", run)
    codes = [
        run_command([*command[:-1], run], capsys, name)
        for command in (*COMMANDS[4:], *COMMANDS[1:4:2])
    ]
    assert codes == ([0, 0, 2, 2] if name == b"\xff" else [0, 0, 0, 0])  # safetensors: UTF-8 only
    assert b"<script> %s" not in Path("report.html").read_bytes()
    faults("hostile name", 4, 4)

"""The Slurm script runs the trainings and nothing else, whatever a flag or folder is called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spikewire.cli import main
from spikewire.config import flag, method_fields, settings
from spikewire.methods import METHODS

TRAP = "touch pwned"
NAMES = (
    f"a\n{TRAP}", f"a\r{TRAP}", f"a\r\n{TRAP}\n", f"a\x0b{TRAP}", f"a\x85{TRAP}", f"a\u2028{TRAP}",
    "a\x1b[31m", "a\tb", "a\x7f", "a\udcff", f"$({TRAP})", f"`{TRAP}`", f"; {TRAP} ;",
    f"' ; {TRAP} ; '", f'" ; {TRAP} ; "', f"&& {TRAP}", f"| {TRAP}", "> pwned", f"<({TRAP})",
    "${IFS}touch${IFS}pwned", "$HOME", "~", "*", "a b", " a", "#", "-y", "--", "--help", "a=b",
    "!!", "{a,b}", "%s {last}", "\\", "\\n", "é 漢字", "(x)", "esac", f") {TRAP} ;;", "a;;",
)  # fmt: skip
PLANTED = ("--out", "--data-dir", "--start", "--teacher")
STUB = '#!/bin/bash\nprintf "%s\\0" "$@" > "$SANDBOX/arguments"\n'


@pytest.fixture
def sandbox(tmp_path, monkeypatch):
    """A folder in which the script runs, with a stub instead of Python."""
    stub = tmp_path / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SANDBOX", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(stub))
    return tmp_path


def script(words, capsys) -> str | None:
    """Return the script for these flags, None if they are refused in one line."""
    common = ["frontier", "--methods=budget", "--connectivity=0.2", "--seeds=1"]
    code = main([*common, "--engine=slurm", "--dry-run", *words])
    out, err = capsys.readouterr()
    assert (code, err.count("\n")) in ((0, 0), (2, 1)), (words, err)
    return out if code == 0 else None


def run(text: str, sandbox: Path) -> list[str]:
    """Run the first array task; return the arguments of the training."""
    assert subprocess.run(["bash", "-n"], input=text.encode()).returncode == 0, text
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "0"}
    done = subprocess.run(["bash"], input=text.encode(), env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b""), (text, done.stderr)
    return (sandbox / "arguments").read_bytes().decode().split("\0")[2:-1]


@pytest.mark.parametrize("option", PLANTED)
def test_no_name_becomes_a_command(sandbox, capsys, faults, option):
    for name in NAMES:
        text = script([f"{option}={name}"], capsys)
        assert (text is None) == (name == "--" or not name.isprintable()), name
        if text is not None:
            out = name if option == "--out" else "runs/frontier"
            arguments = run(text, sandbox)
            assert arguments[-1] == f"--out={out}/digits-budget-0.2-seed0"
            assert option == "--out" or name in arguments or f"{option}={name}" in arguments
        assert not list(sandbox.rglob("pwned")), name
    faults("hostile name in a Slurm script", len(NAMES), len(NAMES))


def test_no_flag_takes_a_new_line_into_the_script(sandbox, capsys, faults):
    fields = {key for method in METHODS for key in method_fields(method)}
    flags = sorted({flag(key) for key in {*settings(), *fields}} - {"--method", "--seed"})
    own = ["--methods", "--seeds", "--cores", "--gpus", "--preset", "--config", "--engine"]
    for name in (*flags, *own):
        assert script([f"{name}=1\n{TRAP}\n"], capsys) is None, name
        assert not list(sandbox.rglob("pwned")), name
    faults("hostile name in a Slurm script", len(flags) + len(own), len(flags) + len(own))


@pytest.mark.parametrize("name", NAMES[::3])
def test_the_script_runs_in_a_folder_of_any_name(sandbox, capsys, monkeypatch, faults, name):
    folder = Path.cwd() / "in" / name
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    text = script([], capsys)
    assert (text is None) == (not name.isprintable())
    if text is not None:
        run(text, sandbox)
        assert Path("runs/frontier/logs").is_dir()
    assert not list(sandbox.rglob("pwned"))
    faults("hostile name in a Slurm script", 1, 1)


@pytest.mark.parametrize("link", ["logs", "logs/digits-budget-0.2-seed0.txt"])
def test_a_planted_link_stops_the_array_task(sandbox, capsys, faults, link):
    text = script(["--out=out"], capsys)
    assert text is not None
    path = Path("out", link)
    path.parent.mkdir(parents=True)
    (sandbox / "folder").mkdir()
    path.symlink_to(sandbox / "folder")
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "0"}
    done = subprocess.run(["bash"], input=text.encode(), env=environment, capture_output=True)
    assert done.returncode == 2
    assert b"is a symbolic link" in done.stderr
    assert os.listdir(sandbox / "folder") == []
    faults("planted link", 1, 1)

"""docs/adding-a-method.md, followed literally in a copy of the repository."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "adding-a-method.md"
NAME = "fanin"


def labelled_blocks():
    """Yield file, language and text of each code block; the file is named above the first."""
    file = ""
    pattern = r"^`([\w/.]+)`:$|^```(\w*)\n(.*?)^```$|^(## [^\n]*)$"
    for found in re.finditer(pattern, PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        label, language, text, heading = found.groups()
        file = label or ("" if heading else file)
        if text is not None:
            yield file, language, text
            file = file if language == "diff" else ""


def apply_diff(text, diff):
    """Return the text with the added lines of a diff; its other lines must be there, once."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] == " ")
    new = "".join(line[1:] for line in lines)
    assert text.count(old) == 1, f"not in the file, or not once:\n{old}"
    return text.replace(old, new)


def run(folder, *words):
    """Run a Python module in the copy; return its output."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the repository with the page's files and edits."""
    folder = tmp_path_factory.mktemp("copy")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for file, language, text in labelled_blocks():
        path = folder / file
        if language == "diff":
            path.write_text(apply_diff(path.read_text("utf-8"), text), "utf-8")
        elif file:
            assert not path.exists(), f"{file} exists already"
            path.write_text(text, "utf-8")
    return folder


def test_the_page_names_every_file_that_a_method_needs():
    files = [file for file, _, _ in labelled_blocks() if file]
    assert files == [
        f"src/spikewire/methods/{NAME}.py",
        "src/spikewire/methods/__init__.py",
        "src/spikewire/__init__.pyi",
        f"tests/methods/test_{NAME}.py",
        "docs/methods.md",
        f"docs/methods/{NAME}.md",
    ]


def commands():
    """Return the words of each command on the page, by its program and first word."""
    (block,) = (text for _, language, text in labelled_blocks() if language == "")
    lines = [shlex.split(line) for line in block.splitlines()]
    return {words[0] if words[0] == "pytest" else words[1]: words for words in lines}


def test_its_own_tests_the_contract_and_the_policy_pass_in_the_copy(copy):
    assert str(copy) in run(copy, "inspect", "spikewire", "--details")
    words = commands()["pytest"]
    output = run(copy, *words, "-rA", "-p", "no:cacheprovider")
    passed = re.findall(r"^PASSED (\S+)", output, re.MULTILINE)
    for file in (f"tests/methods/test_{NAME}.py", "tests/test_contract.py"):
        assert file in words
        assert sum(each.startswith(file) and NAME in each for each in passed) >= 5, file
    assert f"one_row_and_page_of_the_docs[{NAME}]" in output
    assert not re.search(r"\d+ (failed|error|skipped)", output)


def test_the_command_line_knows_the_method(copy):
    listed = run(copy, *commands()["methods"])
    assert re.search(rf"\b{NAME}\b.*Every neuron keeps its largest weights", listed)
    output = run(copy, *commands()["train"], "--epochs", "2")
    assert re.search(r"actual connectivity\s+5\.00\s?%", output)


def test_the_loop_on_the_page_runs():
    blocks = [text for _, language, text in labelled_blocks() if language == "python"]
    names = {"__name__": "page"}
    for block in blocks[:2]:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["pruner"].connectivity() == 0.125

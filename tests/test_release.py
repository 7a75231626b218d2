"""Releases: one version, a citation that matches, and a CI workflow that names what exists."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import spikewire

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github/workflows/ci.yml"
JOBS = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]


def test_the_version_is_written_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    source = project["tool"]["setuptools"]["dynamic"]["version"]
    assert source == {"attr": "spikewire.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", spikewire.__version__)


def test_the_citation_is_valid_and_matches_the_project():
    check_schema("--builtin-schema", "vendor.citation-file-format", ROOT / "CITATION.cff")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation["version"] == spikewire.__version__
    assert citation["license"] == project["license"]
    assert citation["title"].split(":")[0] == project["name"]


def test_the_changelog_has_a_section_of_this_version():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    first = re.search(r"^## (.+)$", text, re.MULTILINE)
    assert first
    released = first[1].startswith(spikewire.__version__)
    unreleased = (
        first[1] == "Unreleased" and f"version in the sources is {spikewire.__version__}." in text
    )
    assert released or unreleased, first[1]


def check_schema(*words):
    command = [sys.executable, "-m", "check_jsonschema", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_has_the_form_that_github_expects():
    check_schema("--builtin-schema", "vendor.github-workflows", WORKFLOW)


def test_every_expression_of_the_workflow_is_defined():
    for name, job in JOBS.items():
        matrix = job.get("strategy", {}).get("matrix", {})
        defined = {f"matrix.{key}" for key in matrix}
        defined |= {"github.workspace", "github.workflow", "github.ref"}
        for expression in re.findall(r"\$\{\{\s*(.*?)\s*\}\}", yaml.safe_dump(job)):
            hashed = re.fullmatch(r"hashFiles\(''?(.+?)''?\)", expression)
            assert list(ROOT.glob(hashed[1])) if hashed else expression in defined, (
                name,
                expression,
            )
        assert set(job.get("needs", [])) <= set(JOBS)
        assert job["timeout-minutes"] <= 120


@pytest.mark.parametrize(("job", "step"), STEPS)
def test_every_step_runs_bash_that_names_existing_files(job, step):
    if "uses" in step:
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
        return
    script = step["run"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for word in shlex.split(script):
        if word.startswith(("tests/", ".ci/")) or word.endswith((".txt", ".toml")):
            assert (ROOT / word).exists(), word
    if script.startswith("make "):
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        assert script.split()[1] in targets
    if script.startswith(".ci/"):
        assert (ROOT / script).stat().st_mode & 0o100, "is not executable"


def test_the_unit_tests_of_other_systems_need_no_optional_package():
    """They are run with pytest, hypothesis and the core dependencies only."""
    (script,) = (step["run"] for _, step in STEPS if step.get("name") == "unit tests")
    words = shlex.split(script)
    ignored = {ROOT / words[i + 1] for i, word in enumerate(words) if word == "--ignore"}
    paths = [ROOT / word for word in words if word.startswith("tests/")]
    files = {x for path in paths for x in ([path] if path.is_file() else path.rglob("*.py"))}
    files |= {ROOT / "tests/conftest.py"}
    assert len(files) > 30
    forbidden = "spikingjelly|snntorch|norse|nir|ray|lightning|accelerate|transformers|selenium"
    forbidden += "|neurobench|h5py|scipy|fcntl|resource|pty|yaml"
    for path in files - ignored:
        found = re.search(rf"^(import|from) ({forbidden})\b", path.read_text("utf-8"), re.MULTILINE)
        assert not found, (path, found)

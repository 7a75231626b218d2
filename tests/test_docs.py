"""The documentation is true: links resolve, commands parse, code runs, tables equal the code."""

import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import foreign_wheels  # noqa: F401
import pytest
import torch

import spikewire
from spikewire import METHODS
from spikewire.cli import COMMANDS
from spikewire.cli.flags import Parser
from spikewire.cli.frontier import read_targets
from spikewire.config import presets, resolve
from spikewire.data import load
from spikewire.errors import SpikewireError
from spikewire.fields import declared

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *DOCS,
    ROOT / "results" / "README.md",
    *sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")),
]
NOTEBOOK = runpy.run_path(str(ROOT / "docs" / "site" / "notebooks.py"))["to_markdown"]
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`spikewire ([^`]+)`")


def text(page):
    """Return a page as Markdown; of a notebook, its text and code."""
    content = page.read_text("utf-8")
    return NOTEBOOK(content) if page.suffix == ".ipynb" else content


def without_code(page):
    return re.sub(r"`[^`\n]*`", "", FENCED.sub("", text(page)))


def python_blocks(page):
    return [code for language, code in FENCED.findall(text(page)) if language == "python"]


# ------------------------------------------------------------------------------ links


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EVERY_PAGE
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    for link in re.findall(r"(?:\]\(|src=\"|srcset=\")([^)\"\s]+)", without_code(page)):
        path, _, anchor = link.partition("#")
        if path.startswith(("http://", "https://", "mailto:", "data:")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_has_one_line_per_page():
    index = text(ROOT / "docs" / "README.md")
    for page in (ROOT / "docs").glob("*.md"):
        if page.name != "README.md":
            assert len(re.findall(rf"^- \[{page.name}\]\({page.name}\): ", index, re.M)) == 1


def test_every_figure_is_on_a_page():
    shown = "".join(text(page) for page in PAGES)
    figures = (ROOT / "docs" / "figures").rglob("*.svg")
    names = [str(path.relative_to(ROOT / "docs")) for path in figures]
    assert len(names) > 20
    assert [name for name in names if name not in shown] == []


@EVERY_PAGE
def test_files_of_the_repository_that_are_named_exist(page):
    named = re.findall(r"`((?:src|tests|docs|benchmarks|examples)/[\w/.-]+)`", text(page))
    missing = [name for name in named if not (ROOT / name).exists()]
    assert [name for name in missing if "fanin" not in name] == []


# ------------------------------------------------------------------------------ commands


class Found(BaseException):
    """Raised in place of running a command; its argument is the command's parser."""


def parser_of(command, monkeypatch):
    """Return the parser that a command reads its flags with, without running the command."""

    def stop(parser, arguments):
        raise Found(parser)

    with monkeypatch.context() as patch:
        patch.setattr(Parser, "read", stop)
        patch.setattr("spikewire.cli.train.keep_memory", lambda: None)
        with pytest.raises(Found) as caught:
            COMMANDS[command]([])
    return caught.value.args[0]


def fenced_commands(page):
    """Yield the words of each `spikewire` command in a code block, also behind torchrun."""
    for language, block in FENCED.findall(text(page)):
        if language in ("", "bash", "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                found = re.match(r"(?:torchrun .*-m )?spikewire (.+)", line)
                if found and "..." not in line:
                    words = shlex.split(found.group(1).partition(" > ")[0], comments=True)
                    yield [word for word in words if word]


def settings_of(given):
    """Return the flags that are settings or fields of a method, as `resolve` takes them."""
    known = set(declared(type(resolve())))
    for method in METHODS.values():
        known |= set(declared(method))
    return {key: value for key, value in given.items() if key in known and value is not None}


@EVERY_PAGE
def test_every_command_in_a_code_block_is_valid(page, monkeypatch):
    for words in fenced_commands(page):
        check_values(words[0], parser_of(words[0], monkeypatch).read(words[1:]))


def check_values(command, given):
    """Resolve the settings of a command; a method that a page adds is not known here."""
    if command == "train" and not given["resume"] and given.get("method") != "fanin":
        resolve(given["preset"], given["config"], settings_of(given))
    if command == "frontier":
        check_frontier(given)


def check_frontier(given):
    """Resolve the settings of each method of a sweep, at each of its targets."""
    flags = settings_of(given)
    flags.pop("dataset", None)
    unit, targets = read_targets(given["unit"], given["targets"], flags.pop("connectivity", None))
    for method in given["methods"].split(","):
        for target in targets:
            own = {unit: f"{target:g}"} if unit in declared(METHODS[method]) else {}
            resolve(given["preset"], given["config"], {**flags, **own, "method": method})


def test_there_are_commands_to_check():
    assert sum(len(list(fenced_commands(page))) for page in PAGES) > 40


@pytest.mark.parametrize("word", ["--conectivity", "--preset=mnist-slow", "--epochs=0"])
def test_a_wrong_command_would_be_found(word, monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"```\nspikewire train {word} # comment\n```\n")
    with pytest.raises(SpikewireError):
        test_every_command_in_a_code_block_is_valid(page, monkeypatch)


@EVERY_PAGE
def test_commands_within_a_sentence_have_known_flags(page, monkeypatch):
    for found in INLINE.findall(FENCED.sub("", text(page))):
        command, *words = shlex.split(found)
        if command == "packed":  # the name of a file format
            continue
        parser = parser_of(command, monkeypatch)
        flags = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert flags <= set(parser._option_string_actions), found
        if "--preset" in flags:  # a whole command, perhaps with a letter for a value
            given = parser.read(words)
            if not any(re.fullmatch("[A-Z]+", word) for word in words):
                check_values(command, given)


@EVERY_PAGE
def test_every_other_command_names_a_target_an_extra_or_a_script_that_exists(page):
    blocks = [block for _, block in FENCED.findall(text(page))]
    code = "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", FENCED.sub("", text(page)))])
    targets = re.findall(r"^([\w-]+):", text(ROOT / "Makefile"), re.MULTILINE)
    assert set(re.findall(r"^make ([\w-]+)", code, re.MULTILINE)) <= set(targets)
    extras = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    for named in re.findall(r"pip install '(?:spikewire|\.)\[([\w,]+)\]'", code):
        assert set(named.split(",")) <= set(extras)
    for script, words in re.findall(r"\bpython ([\w/]+\.py)([^\n#]*)", code):
        if (ROOT / script).parent.name == "benchmarks":
            check_flags(script, re.findall(r"--[\w-]+", words))


@pytest.mark.parametrize(
    "words", ["make tset", "pip install '.[nri]'", "python benchmarks/inference.py --wat fc"]
)
def test_another_wrong_command_would_be_found(words, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"Run `{words}`.\n")
    with pytest.raises(AssertionError):
        test_every_other_command_names_a_target_an_extra_or_a_script_that_exists(page)


def check_flags(script, flags):
    """Check that a script knows these flags, or may hand them on to `spikewire train`."""
    own = re.findall(r"add_argument\(\s*\"(--[\w-]+)", text(ROOT / script))
    settings = [f"--{key.replace('_', '-')}" for key in declared(type(resolve()))]
    handed_on = settings if "parse_known_args" in text(ROOT / script) else []
    assert set(flags) <= {*own, *handed_on}, script


# ------------------------------------------------------------------------------ code


@EVERY_PAGE
def test_every_python_block_compiles(page):
    for number, code in enumerate(python_blocks(page)):
        compile(code, f"{page.name} block {number}", "exec")


def network_of_the_pages():
    """Return the names that fragments of metrics.md and export.md use, and write their file."""
    pixels = load("digits").test_images[:8]
    images = pixels / 255
    model = spikewire.build("digits-mlp", time_steps=4)
    spikewire.scale_to_fire_(model, images)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = spikewire.Budget(connectivity=0.5).attach(model, optimizer, total_steps=1)
    model(images).sum().backward()
    optimizer.step()
    frames = images[:1].expand(4, 1, 1, 8, 8)
    spikewire.export(model, images, "model.packed.safetensors", mean=(0.0,), std=(1.0,))
    return {**locals(), "frame": frames[0], "spikewire": spikewire}


def run_of_the_page():
    """Train one epoch into runs/one, which report.md reads."""
    flags = {"epochs": "1", "method": "dense"}  # few figures
    spikewire.fit(spikewire.resolve("digits", flags=flags), "runs/one")
    return {}


PREPARED = {
    "metrics.md": network_of_the_pages,
    "export.md": network_of_the_pages,
    "report.md": run_of_the_page,
}
WITH_CODE = [page for page in DOCS if python_blocks(page) and page.name != "adding-a-method.md"]


@pytest.mark.filterwarnings("ignore:The .* function was deprecated in Matplotlib")  # SciencePlots
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_python_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": page.stem, **PREPARED.get(page.name, dict)()}
    for number, code in enumerate(python_blocks(page)):
        exec(compile(code, f"{page.name} block {number}", "exec"), names)
        if "def build(" in code:
            check_network(names["build"])
    if page.name in ("python-api.md", "getting-started.md"):
        check_learned(names["model"], names["data"])


def check_learned(model, data):
    """Check that the network of a page fires and classifies; a silent one runs as well."""
    with torch.no_grad():
        rates = model(data.test_images / 255).mean(0)
    assert rates.mean() > 0.01
    assert (rates.argmax(1) == data.test_labels).float().mean() > 0.7


def check_network(build):
    """Call a function for ``--model`` as the command line does, and the network it returns."""
    offered = {"input_shape": (1, 28, 28), "classes": 10, "time_steps": 2}
    wanted = inspect.signature(build).parameters
    network = build(**{key: value for key, value in offered.items() if key in wanted})
    assert network(torch.rand(3, 1, 28, 28)).shape[-2:] == (3, 10)


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda x: x.stem)
def test_every_example_runs(example, tmp_path):
    # torchvision, which some of the packages import, may be of another build of torch
    code = "import runpy, sys, foreign_wheels; runpy.run_path(sys.argv[1], run_name='__main__')"
    paths = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", code, example],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    accuracy = re.search(r"^pruned: accuracy ([\d.]+)%", done.stdout, re.MULTILINE)
    assert accuracy
    assert float(accuracy.group(1)) > 90


# ------------------------------------------------------------------------------ tables


def test_every_preset_is_documented():
    page = text(ROOT / "docs" / "getting-started.md")
    cells = re.findall(r"^\| (`[^|]+`) \|", page, re.MULTILINE)  # one name or several
    assert set(re.findall(r"`([\w-]+)`", " ".join(cells))) >= set(presets())


def test_the_table_of_methods_has_their_pages_and_classes():
    row = re.compile(r"^\| \[`(\w+)`\]\(methods/(\w+)\.md\) \| `(\w+)` \| ", re.MULTILINE)
    rows = row.findall(text(ROOT / "docs" / "methods.md"))
    wanted = [(name, name, kind.__name__) for name, kind in METHODS.items()]
    assert sorted(rows) == sorted(wanted)
    assert {page.stem for page in DOCS if page.parent.name == "methods"} == set(METHODS)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("budget", "dense")])
def test_the_page_of_every_published_method_says_where_we_differ(name):
    _, _, section = text(ROOT / "docs" / "methods" / f"{name}.md").partition("## Where we differ")
    assert "uthors" in section.partition("\n")[0]
    assert "**As published**" in section or "to us" in section  # else: what is not known to us


def test_the_fields_and_results_of_every_method_are_those_of_the_code_and_of_results_md():
    generator = runpy.run_path(str(ROOT / "docs" / "site" / "pages.py"))
    stale = [path.name for path, found, wanted in generator["pages"]() if found != wanted]
    assert stale == [], "run: make pages"


@pytest.mark.parametrize(
    "words", [("| `alpha` | none | [0, inf) |", "| `alpha` | 1 | [0, inf) |"), ("97.21", "98.21")]
)
def test_a_stale_default_or_result_would_be_found(words):
    generator = runpy.run_path(str(ROOT / "docs" / "site" / "pages.py"))
    page = text(ROOT / "docs" / "methods" / "gradr.md")
    assert words[0] in page
    assert generator["fill"](page.replace(*words), "gradr") == page

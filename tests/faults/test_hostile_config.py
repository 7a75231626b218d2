"""Settings are untrusted input: each case starts a run, or ends in one line and exit code 2."""

import re
import shutil
import signal
import subprocess
import sys
from dataclasses import Field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spikewire import config
from spikewire.cli import main
from spikewire.fields import choices_of
from spikewire.methods import METHODS
from spikewire.train import loop

pytestmark = pytest.mark.filterwarnings("default")  # as for a user: one line each
SETTINGS = config.settings()
NUMBERS = (0, 1, 2, 8, -1, 0.5, 0.05, 1e30, 1e-300, 1e308, 2**31, 2**63, 2**64, 10**40, 10**400)
WORDS = (
    *dict.fromkeys(word for rule in SETTINGS.values() for word in choices_of(rule)),
    *re.split(" ", "auto true none inf nan -0 1e3 crop:4 flip affine affine:1/2 cutout:1e9 - --"),
    *re.split(" ", "global layer uniform erk ~ ~x / .. ../../etc/passwd $(id) `id` %s \udcff"),
    *("", " ", "a\nb", "a" * 300, "\0", "\x7f"),
)
SCALARS = st.one_of(
    st.sampled_from(NUMBERS), st.sampled_from(WORDS), st.booleans(), st.integers(), st.floats()
) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
VALID = {
    "bool": st.booleans(),
    "int": st.integers(1, 8),
    "float": st.sampled_from([0.05, 0.1, 0.5, 0.9]),
}


def valid_values(rule: Field) -> st.SearchStrategy:
    """Return values of the field's type, most of them valid."""
    words = choices_of(rule)
    if words:
        return st.sampled_from(words)
    return VALID.get(getattr(rule.type, "__name__", "float"), st.just(""))


@st.composite
def tables(draw) -> tuple[dict, dict]:
    """Draw settings and a method's fields; in half of the cases some are invalid or unknown."""
    method = draw(st.sampled_from(sorted(METHODS)))
    invalid = draw(st.booleans())

    def some(rules: dict[str, Field]) -> dict:
        keys = draw(
            st.lists(st.sampled_from([*rules, *["epoch", ""] * invalid] or ["x"]), max_size=4)
        )
        wrong = {key for key in keys if key not in rules or (invalid and draw(st.booleans()))}
        return {key: draw(VALUES if key in wrong else valid_values(rules[key])) for key in keys}

    return {**some(SETTINGS), "method": method}, some(config.method_fields(method))


def toml(value: object) -> str:
    """Return the value as TOML."""
    match value:
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{toml(key)} = {toml(item)}' for key, item in value.items())}}}"
        case str():
            return '"' + "".join(f"\\U{ord(letter):08x}" for letter in value) + '"'
        case int():
            return str(value)
        case _:
            return repr(value)


class Started(BaseException):
    """A run has started."""


def one_step(training, folder, progress, received):
    """Take one real step, if it is short, instead of training."""
    if training.config.time_steps <= 8 and not training.config.compile:
        training.step(*next(training.train.epoch(0)))
    raise Started


@pytest.fixture
def try_command(tmp_path, monkeypatch, capsys):
    """Run a command; return whether it started a run. Otherwise it must print one line, exit 2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPIKEWIRE_DATA", str(tmp_path))  # only the embedded digits are available
    monkeypatch.setattr(loop, "train", one_step)
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("no end"))

    def run(*words: str) -> bool:
        signal.alarm(120)
        try:
            code = main(words)
        except Started:
            return True
        finally:
            signal.alarm(0)
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            err = capsys.readouterr().err
        lines = [line for line in err.splitlines() if not line.startswith("spikewire: warning: ")]
        assert (code, len(lines)) == (2, 1), err
        assert lines[0].startswith("spikewire: ")
        return False

    return run


def cases(count: int):
    """Return the settings of hypothesis; a short set is deterministic."""
    off = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    same = {"derandomize": count < 1000, "database": None}
    return settings(max_examples=count, deadline=None, suppress_health_check=off, **same)


@pytest.mark.parametrize("count", [150, pytest.param(5_000, marks=pytest.mark.slow)])
def test_settings_start_a_run_or_end_in_one_line(try_command, tmp_path, faults, count):
    started = []

    @cases(count)
    @given(tables())
    def by_file(drawn):
        top, fields = drawn
        lines = [f"{toml(key)} = {toml(value)}" for key, value in top.items()]
        lines += [f"[{top['method']}]", *(f"{toml(k)} = {toml(v)}" for k, v in fields.items())]
        (tmp_path / "case.toml").write_bytes("\n".join(lines).encode())
        started.append(try_command("train", "--config", "case.toml", "--out", "run"))

    @cases(count)
    @given(tables(), st.sampled_from(["", *config.presets()]))
    def by_flags(drawn, preset):
        given = {**drawn[0], **drawn[1]}
        words = [f"--preset={preset}"] * bool(preset)
        words += [f"{config.flag(key)}={value}" for key, value in given.items()]
        started.append(try_command("train", *words, "--out", "run"))

    by_file()
    by_flags()
    assert 0.1 < sum(started) / len(started) < 0.9, "nearly all cases are invalid, or valid"
    faults("hostile settings", len(started), len(started))


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.slow)])
def test_any_file_and_any_arguments_start_a_run_or_end_in_one_line(
    try_command, tmp_path, faults, count
):
    tried = []

    @cases(count)
    @given(st.binary() | st.text("=[]{}\"'#\n.,:-+_ aeinopst0123456789").map(str.encode))
    def any_file(content):
        (tmp_path / "case.toml").write_bytes(content)
        tried.append(try_command("train", "--config", "case.toml", "--out", "run"))

    @cases(count)
    @given(st.lists(st.sampled_from(["train", "eval", "--out", "--resume", *WORDS]), max_size=4))
    def any_words(words):
        tried.append(try_command("train", "--epochs=1", "--time-steps=1", *words))

    any_file()
    any_words()
    faults("hostile settings", len(tried), len(tried))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = 1" + "0" * 400, "lr: 'a number of that size' is not allowed"),
        ("seed = 0x1" + "0" * 5000, "seed: 'a number of that size' is not allowed"),
        ("x = " + "[" * 10_000, "is not TOML"),
        ("threads = 1000000000", "threads: 1000000000 is not allowed; it must be in [0, 1024]"),
        ("time_steps = 1000000000", "time_steps: 1000000000 is not allowed"),
        ('data_dir = "\\u0000"', "data_dir: '\\x00' is not allowed; it must be UTF-8 text"),
        ('dataset = "mnist"\ndata_dir = "~nobody-of-that-name/x"', "does not exist"),
        (f'teacher = "{"a" * 5000}"', "File name too long"),
    ],
)
def test_cases_that_once_gave_a_traceback(try_command, tmp_path, capsys, faults, text, message):
    (tmp_path / "case.toml").write_text(text)
    code = main(["train", "--config", "case.toml", "--out", "run"])
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert not (tmp_path / "run").exists()
    faults("hostile settings", 1, 1)


@pytest.mark.parametrize("name", ["../x", "/x", "digits/../../x", "a;touch x", "$(touch x)"])
@pytest.mark.parametrize("key", ["dataset", "method", "model"])
def test_a_name_never_becomes_a_path(try_command, tmp_path, faults, key, name):
    before = sorted(tmp_path.parent.rglob("*"))
    assert not try_command("train", f"--{key}={name}")
    if key != "model":
        assert not try_command("frontier", f"--{key}{'s' * (key == 'method')}={name}")
    assert sorted(tmp_path.parent.rglob("*")) == before
    faults("hostile name", 1, 1)


def test_a_full_disk_behind_the_output_is_one_line(tmp_path, faults):
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "spikewire", "methods"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, b"spikewire: output: No space left on device\n")
    faults("disk full behind the output", 1, 1)

"""Settings are hostile input: each case ends in a run, or in one clear line and exit 2."""

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
from spikewire.methods import METHODS
from spikewire.train import loop as train

pytestmark = pytest.mark.filterwarnings("default")  # as for a user: a line each
SETTINGS = config.settings()
NUMBERS = (0, 1, 2, 8, -1, 0.5, 0.05, 1e30, 1e-300, 1e308, 2**31, 2**63, 2**64, 10**40, 10**400)
WORDS = (
    *dict.fromkeys(word for rule in SETTINGS.values() for word in config.allowed_words(rule)),
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
SANE = {
    "bool": st.booleans(),
    "int": st.integers(1, 8),
    "float": st.sampled_from([0.05, 0.1, 0.5, 0.9]),
}


def fitting(rule: Field) -> st.SearchStrategy:
    """Return values of the field's own kind, most of them allowed."""
    words = config.allowed_words(rule)
    if words:
        return st.sampled_from(words)
    return SANE.get(getattr(rule.type, "__name__", "float"), st.just(""))


@st.composite
def tables(draw) -> tuple[dict, dict]:
    """Draw settings and a method's fields: in half of the cases some are wrong or unknown."""
    method = draw(st.sampled_from(sorted(METHODS)))
    wild = draw(st.booleans())

    def some(rules: dict[str, Field]) -> dict:
        keys = draw(st.lists(st.sampled_from([*rules, *["epoch", ""] * wild] or ["x"]), max_size=4))
        odd = {key for key in keys if key not in rules or (wild and draw(st.booleans()))}
        return {key: draw(VALUES if key in odd else fitting(rules[key])) for key in keys}

    return {**some(SETTINGS), "method": method}, some(config.method_fields(method))


def toml(value: object) -> str:
    """Return the value as TOML writes it."""
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


class Begun(BaseException):
    """A run has begun."""


def begin(training, folder, progress):
    """Take one real step, where it is short, in place of all of them."""
    if training.config.time_steps <= 8 and not training.config.compile:
        training.step(*next(training.train.epoch(0)))
    raise Begun


@pytest.fixture
def judged(tmp_path, monkeypatch, capsys):
    """Run a command; return whether it began a run. Anything but one line and exit 2 fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPIKEWIRE_DATA", str(tmp_path))  # only the embedded digits are there
    monkeypatch.setattr(train, "_run", begin)
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))

    def run(*words: str) -> bool:
        signal.alarm(120)
        try:
            code = main(words)
        except Begun:
            return True
        finally:
            signal.alarm(0)
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            err = capsys.readouterr().err
        said = [line for line in err.splitlines() if not line.startswith("spikewire: warning: ")]
        assert (code, len(said)) == (2, 1), err
        assert said[0].startswith("spikewire: ")
        return False

    return run


def cases(count: int):
    """Return the settings of hypothesis; a short set is the same each time."""
    off = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    same = {"derandomize": count < 1000, "database": None}
    return settings(max_examples=count, deadline=None, suppress_health_check=off, **same)


@pytest.mark.parametrize("count", [150, pytest.param(5_000, marks=pytest.mark.slow)])
def test_settings_end_in_a_run_or_in_one_line(judged, tmp_path, faults, count):
    begun = []

    @cases(count)
    @given(tables())
    def by_file(drawn):
        top, fields = drawn
        lines = [f"{toml(key)} = {toml(value)}" for key, value in top.items()]
        lines += [f"[{top['method']}]", *(f"{toml(k)} = {toml(v)}" for k, v in fields.items())]
        (tmp_path / "case.toml").write_bytes("\n".join(lines).encode())
        begun.append(judged("train", "--config", "case.toml", "--out", "run"))

    @cases(count)
    @given(tables(), st.sampled_from(["", *config.presets()]))
    def by_flags(drawn, preset):
        given = {**drawn[0], **drawn[1]}
        words = [f"--preset={preset}"] * bool(preset)
        words += [f"{config.flag(key)}={value}" for key, value in given.items()]
        begun.append(judged("train", *words, "--out", "run"))

    by_file()
    by_flags()
    assert 0.1 < sum(begun) / len(begun) < 0.9, "the cases are too hard, or too easy"
    faults("hostile settings", len(begun), len(begun))


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.slow)])
def test_any_text_and_any_words_end_in_a_run_or_in_one_line(judged, tmp_path, faults, count):
    tried = []

    @cases(count)
    @given(st.binary() | st.text("=[]{}\"'#\n.,:-+_ aeinopst0123456789").map(str.encode))
    def any_file(content):
        (tmp_path / "case.toml").write_bytes(content)
        tried.append(judged("train", "--config", "case.toml", "--out", "run"))

    @cases(count)
    @given(st.lists(st.sampled_from(["train", "eval", "--out", "--resume", *WORDS]), max_size=4))
    def any_words(words):
        tried.append(judged("train", "--epochs=1", "--time-steps=1", *words))

    any_file()
    any_words()
    faults("hostile settings", len(tried), len(tried))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr = 1" + "0" * 400, "lr: 'a number of that size' is not allowed"),
        ("seed = 0x1" + "0" * 5000, "seed: 'a number of that size' is not allowed"),
        ("x = " + "[" * 10_000, "is not TOML"),
        ("threads = 1000000000", "threads: 1000000000 is not allowed; it must be 0 to 1024"),
        ("time_steps = 1000000000", "time_steps: 1000000000 is not allowed"),
        ('data_dir = "\\u0000"', "data_dir: '\\x00' is not allowed; it must be UTF-8 text"),
        ('dataset = "mnist"\ndata_dir = "~nobody-of-that-name/x"', "is not there"),
        (f'teacher = "{"a" * 5000}"', "File name too long"),
    ],
)
def test_what_once_was_no_clear_line(judged, tmp_path, capsys, faults, text, said):
    (tmp_path / "case.toml").write_text(text)
    code = main(["train", "--config", "case.toml", "--out", "run"])
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
    assert not (tmp_path / "run").exists()
    faults("hostile settings", 1, 1)


@pytest.mark.parametrize("name", ["../x", "/x", "digits/../../x", "a;touch x", "$(touch x)"])
@pytest.mark.parametrize("key", ["dataset", "method", "model"])
def test_a_name_leads_nowhere(judged, tmp_path, faults, key, name):
    before = sorted(tmp_path.parent.rglob("*"))
    assert not judged("train", f"--{key}={name}")
    if key != "model":
        assert not judged("frontier", f"--{key}{'s' * (key == 'method')}={name}")
    assert sorted(tmp_path.parent.rglob("*")) == before
    faults("hostile name", 1, 1)


def test_a_full_device_behind_the_output_is_one_line(tmp_path, faults):
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "spikewire", "methods"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, b"spikewire: output: No space left on device\n")
    faults("disk full behind the output", 1, 1)

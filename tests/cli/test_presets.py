"""`spikewire presets`, `spikewire methods`, and the values that help shows."""

import pytest

from spikewire.cli import main
from spikewire.config import method_fields, presets, resolve
from spikewire.fields import accepted
from spikewire.methods import METHODS


def test_presets_lists_each_with_a_sentence(call):
    code, out, err = call("presets")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.strip() for line in out.splitlines() if line.split()}
    for name, text in presets().items():
        about = text.partition("\n")[0].removeprefix("# ")
        assert about.endswith("."), f"the first line of {name} is a sentence"
        assert rows[name].endswith(about)
        assert f" {resolve(name).epochs} " in rows[name]


@pytest.mark.parametrize("name", presets())
def test_a_printed_preset_is_a_config_file_of_the_same_settings(call, tmp_path, name):
    code, out, _ = call("presets", name)
    (tmp_path / "mine.toml").write_text(out)
    assert code == 0
    for flags in ({}, {"method": "budget"}, {"method": "deepr"}):
        assert resolve(file=tmp_path / "mine.toml", flags=flags) == resolve(name, flags=flags)


def test_methods_lists_every_method(call):
    code, out, _ = call("methods")
    assert code == 0
    assert {line.split()[0] for line in out.splitlines() if line.split()} >= METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_methods_describes_one_with_its_fields(call, name):
    code, out, _ = call("methods", name)
    text = " ".join(out.split())
    assert code == 0
    for key, rule in method_fields(name).items():
        assert f"--{key.replace('_', '-')} " in text
        assert accepted(rule) in text, "brackets are not markup"
    assert "Args:" not in out


def test_a_method_is_described_by_paper_equation_ranges_and_defaults(call):
    out = call("methods", "gradr")[1]
    assert "https://arxiv.org/abs/2105.04916" in out
    assert "theta <- theta - lr (s dL/dw + alpha sign(theta - mu))" in out
    row = next(line for line in out.splitlines() if line.strip().startswith("--p "))
    assert row.split()[-3:] == ["[0.5,", "1)", "0.95"]


def help_of(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_shows_the_values_of_the_preset(capsys):
    plain, own = help_of(capsys, "train"), help_of(capsys, "train", "--preset", "mnist-budget")
    assert "values of digits are shown" in plain
    assert "values of mnist-budget are shown" in own
    for text, values in ((plain, resolve()), (own, resolve("mnist-budget"))):
        assert f"training images; [1, 1e9] (default {values.epochs})" in text
        assert f"learning rate; (0, 1e30] (default {values.lr:g})" in text
    assert "(default 0.035 for gradr)" in plain, "alpha, which the preset sets"
    assert f"(default {resolve('mnist-budget').options['ramp']:g} for budget)" in own


def test_help_follows_data_set_method_and_file(capsys, tmp_path):
    assert "values of mnist-fast are shown" in help_of(capsys, "train", "--dataset", "mnist")
    assert "rate; (0, 1e30] (default 0.005)" in help_of(capsys, "train", "--method", "budget")
    (tmp_path / "x.toml").write_text("epochs = 7\n")
    assert "[1, 1e9] (default 7)" in help_of(capsys, "train", "--config", f"{tmp_path}/x.toml")
    assert "values of mnist-fast" in help_of(capsys, "frontier", "--preset", "mnist-fast")


def test_help_of_an_unknown_preset_is_refused(call):
    code, out, err = call("train", "--preset", "digit", "--help")
    assert (code, out) == (2, "")
    assert err.startswith("spikewire: --preset: unknown 'digit'; did you mean 'digits'?")


def test_help_of_frontier_shows_defaults(capsys):
    text = help_of(capsys, "frontier")
    assert "comma list (gradr,deepr,budget)" in text
    assert "(0.25,0.05,0.01)" in text
    assert "seeds 0 to N-1 (3)" in text
    assert "(runs/frontier)" in text


@pytest.mark.parametrize("name", ["mnist-rbm", "mnist-wta", "mnist-tempotron"])
def test_networks_of_small_steps_take_one_thread(name):
    """A second thread costs more than it saves, many times more on busy cores."""
    assert resolve(name).threads == 1

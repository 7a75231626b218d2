import tomllib
from dataclasses import MISSING, asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

from spikewire import plasticity
from spikewire.config import (
    MODEL_OF,
    Config,
    collisions,
    method_defaults,
    method_fields,
    presets,
    resolve,
    settings,
)
from spikewire.config.effects import OF_NETWORKS
from spikewire.data import DATASETS
from spikewire.errors import SpikewireError
from spikewire.methods import METHODS

numbers = st.floats(min_value=1e-30, max_value=1e30)


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write


def complaint(**source):
    with pytest.raises(SpikewireError) as caught:
        resolve(**source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(
    lr=numbers,
    scale=numbers,
    warmup=st.floats(min_value=0, max_value=0.99),
    epochs=st.integers(1, 10**9),
    switch=st.booleans(),
    folder=st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    dropout=st.none() | st.floats(min_value=0, max_value=0.99),
    augment=st.lists(st.sampled_from(["crop:2", "flip", "affine:1.5/8/0.1"])),
)
def test_round_trip_through_toml(
    tmp_path_factory, lr, scale, warmup, epochs, switch, folder, dropout, augment
):
    config = Config(
        lr=lr,
        rate_scale=scale,
        warmup=warmup,
        epochs=epochs,
        compile=switch,
        data_dir=folder,
        dropout=dropout,
        augment=augment,
    )
    path = tmp_path_factory.mktemp("toml") / "config.toml"
    path.write_text(config.to_toml(), "utf-8", newline="")
    assert resolve(file=path) == config


@pytest.mark.parametrize("method", METHODS)
def test_round_trip_of_each_method(tmp_path, method):
    config = Config(method=method, options=_needed(method))
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert resolve(file=tmp_path / "config.toml") == config
    assert set(config.options) == set(method_fields(method))


def _needed(method):
    return {key: 0.1 for key, default in method_defaults(method).items() if default is MISSING}


def test_no_method_field_hides_a_setting():
    assert collisions() == set()


def test_every_data_set_has_a_model():
    assert MODEL_OF.keys() == DATASETS.keys()
    for dataset, model in MODEL_OF.items():
        assert Config(dataset=dataset).model == model


def test_every_setting_tells_what_it_is():
    assert all(rule.metadata["help"] for rule in settings().values())


@pytest.mark.parametrize("preset", presets())
def test_presets_resolve_with_every_section_they_hold(preset):
    sections = [key for key in tomllib.loads(presets()[preset]) if key in METHODS]
    assert sections
    for method in sections:
        assert resolve(preset, flags={"method": method}).method == method


@pytest.mark.parametrize(
    ("preset", "epochs", "batch_size", "augment"),
    [
        ("mnist-paper", 512, 128, ("random-affine:30/0.15/0.85/1.11",)),
        ("cifar10-paper", 2048, 16, ("crop:4", "flip")),
    ],
)
def test_paper_presets_are_the_papers(preset, epochs, batch_size, augment):
    config = resolve(preset)
    assert (config.epochs, config.batch_size, config.augment) == (epochs, batch_size, augment)
    assert (config.optimizer, config.lr, config.schedule) == ("adam", 1e-4, "constant")
    assert (config.loss, config.time_steps, config.tau) == ("mse-rate", 8, 2.0)
    assert (config.threshold, config.surrogate, config.init) == (1.0, "atan", "default")
    assert (config.weight_decay, config.warmup, config.readout) == (0.0, 0.0, "spikes")
    assert config.options["p"] == 0.95


def test_paper_presets_follow_the_authors_code_where_the_text_is_silent():
    mnist, cifar10 = resolve("mnist-paper"), resolve("cifar10-paper")
    assert (mnist.pixel_mean, mnist.pixel_std) == ((0.1307,), (0.3081,))
    assert (mnist.batchnorm, cifar10.batchnorm) == ("joint", "per-step")


def test_flags_beat_the_file_which_beats_the_preset(written):
    path = written("epochs = 7\nlr = 1\n[gradr]\nalpha = 0.5\np = 0.6\n")
    config = resolve("mnist-paper", path, {"lr": "0.25", "p": "0.7"})
    assert (config.batch_size, config.epochs, config.lr) == (128, 7, 0.25)
    assert (config.options["alpha"], config.options["p"]) == (0.5, 0.7)


def test_a_file_alone_starts_from_the_defaults(written):
    assert resolve(file=written("epochs = 3\n")) == Config(epochs=3)


def test_of_fields_that_exclude_each_other_the_upper_layer_wins(written):
    config = resolve(file=written("[gradr]\nalpha = 0.1\n"), flags={"connectivity": "0.2"})
    assert (config.options["alpha"], config.target) == (None, 0.2)
    config = resolve(file=written("[gradr]\nconnectivity = 0.1\n"), flags={"alpha": "0.2"})
    assert (config.options["alpha"], config.target) == (0.2, None)


def test_only_the_chosen_methods_section_is_kept(written):
    path = written("method = 'deepr'\n[gradr]\nalpha = 0.3\n[deepr]\nconnectivity = 0.2\n")
    config = resolve(file=path)
    assert config.target == config.options["connectivity"] == 0.2
    assert "[gradr]" not in config.to_toml()


def test_lists_are_read_from_flags_and_from_single_values(written):
    path = written("early_time_steps = 4\nearly = 0.5")
    config = resolve("mnist-budget", path, {"augment": "none"})
    assert (config.augment, config.early_time_steps, config.early) == ((), (4,), (0.5,))
    config = resolve(flags={"early_time_steps": "2, 4", "early": "0.5,0.9"})
    assert (config.early_time_steps, config.early) == ((2, 4), (0.5, 0.9))


def test_flags_are_read_like_toml():
    flags = {"compile": "true", "augment": "crop:2, flip", "dropout": "0.5", "seed": "7"}
    config = resolve(flags=flags)
    assert (config.compile, config.augment, config.dropout, config.seed) == (
        True,
        ("crop:2", "flip"),
        0.5,
        7,
    )


def test_a_section_sets_a_rate_for_its_method_alone(written):
    path = written("lr = 0.1\n[budget]\nlr = 0.2\nepochs = 3\nramp = 0.5\n")
    assert resolve(file=path).lr == 0.1
    config = resolve(file=path, flags={"method": "budget"})
    assert (config.lr, config.epochs, config.options["ramp"]) == (0.2, 3, 0.5)
    assert resolve(file=path, flags={"method": "budget", "lr": "0.3"}).lr == 0.3
    again = written(config.to_toml())  # as a resumed run reads it
    assert "lr = 0.2" in config.to_toml().partition("[budget]")[0]
    assert resolve(file=again) == config


def test_deep_r_starts_at_random_unless_the_weights_are_trained():
    """Random places would throw away what a trained network has learned."""
    for method, more in (("deepr", {}), ("softdeepr", {"expected": "0.1"})):
        flags = {"method": method, **more}
        assert resolve(flags=flags).options["initial"] == "random"
        assert resolve(flags=flags | {"start": "runs/a"}).options["initial"] == "largest"
        chosen = flags | {"start": "runs/a", "initial": "random"}
        assert resolve(flags=chosen).options["initial"] == "random"


def test_a_file_above_a_preset_overrides_the_presets_rate_for_a_method(written):
    budget = {"method": "budget"}
    assert resolve("digits", flags=budget).lr < resolve("digits").lr  # which makes it collapse
    assert resolve("digits", written("lr = 0.7\n"), budget).lr == 0.7


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("epochs = 'many'", ["mine.toml: epochs", "'many'", "a whole number"]),
        ("epochs = 2.5", ["mine.toml: epochs", "2.5", "a whole number"]),
        ("epochs = true", ["mine.toml: epochs", "True", "a whole number"]),
        ("epochs = 0", ["mine.toml: epochs", "0", "in [1, 1e9]"]),
        ("epochs = '5'", ["mine.toml: epochs", "'5'", "a whole number"]),
        ("lr = nan", ["mine.toml: lr", "in (0, 1e30]"]),
        ("lr = inf", ["mine.toml: lr", "in (0, 1e30]"]),
        ("compile = 1", ["mine.toml: compile", "true or false"]),
        ("augment = 3", ["mine.toml: augment", "a text"]),
        ("early_time_steps = [2, 4]", ["early: (0.8,)", "2 fractions"]),
        ("early_time_steps = [2, 4]\nearly = [0.9, 0.5]", ["mine.toml: early", "in order"]),
        ("augment = ['crap:4']", ["mine.toml: augment", "did you mean 'crop'"]),
        ("warmup = 1.0", ["mine.toml: warmup", "in [0, 1)"]),
        ("epocs = 3", ["mine.toml", "'epocs'", "did you mean 'epochs'"]),
        ("options = 3", ["mine.toml", "'options'"]),
        ("[gradx]\nalpha = 1", ["mine.toml: section", "did you mean 'gradr'"]),
        ("[gradr]\nalhpa = 1", ["mine.toml: field of [gradr]", "did you mean 'alpha'"]),
        ("[budget]\nalpha = 1", ["mine.toml: [budget] alpha: belongs to deepr, gradr"]),
        (
            "first = 0.5",
            ["mine.toml: first: is a field of the method budget; put it into its section"],
        ),
        ("[gradr]\nlr = -1", ["mine.toml: [gradr] lr", "-1"]),
        ("[gradr]\nmethod = 'budget'", ["mine.toml: field of [gradr]", "'method'"]),
        ("[gradr]\nalpha = 'x'", ["mine.toml: [gradr] alpha", "a number"]),
        ("[gradr]\nalpha = -1", ["mine.toml: [gradr] alpha", "-1"]),
        ("[gradr]\np = 0.4", ["mine.toml: [gradr] p", "0.5"]),
        (
            "[gradr]\nsparsity = 0.9",
            ["[gradr] sparsity", "did you mean connectivity = 0.1?"],
        ),
        ("sparsity = 0.75", ["mine.toml: field sparsity", "did you mean connectivity = 0.25?"]),
        ("dataset = 'mnits'", ["mine.toml: dataset", "did you mean 'mnist'"]),
        ("epochs = ", ["mine.toml", "is not TOML"]),
    ],
)
def test_a_wrong_file_is_refused(written, text, parts):
    said = complaint(file=written(text))
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({"epochs": "many"}, ["--epochs: 'many'", "a whole number"]),
        ({"lr": "-1"}, ["--lr: -1.0", "in (0, 1e30]"]),
        ({"compile": "maybe"}, ["--compile: 'maybe'", "true or false"]),
        ({"dataset": "digit"}, ["--dataset: unknown 'digit'", "did you mean 'digits'"]),
        ({"method": "gradient"}, ["--method: unknown 'gradient'", "gradr"]),
        ({"model": "lenet"}, ["--model: unknown 'lenet'", "did you mean 'lenet5'"]),
        ({"alpha": "-1"}, ["--alpha: -1.0"]),
        ({"p": "0.2"}, ["--p: 0.2"]),
        ({"sparsity": "0.9"}, ["--sparsity: unknown; did you mean --connectivity 0.1?"]),
        ({"sparsity": "90"}, ["--sparsity: unknown; did you mean --connectivity X?"]),
        ({"method": "deepr", "connectivity": "1.5"}, ["--connectivity: 1.5", "(0, 1]"]),
        ({"method": "dense", "alpha": "1"}, ["--alpha: belongs to", "gradr", "not to 'dense'"]),
        ({"batch_sise": "1"}, ["flag: unknown '--batch-sise'", "did you mean '--batch-size'"]),
    ],
)
def test_a_wrong_flag_is_refused(flags, parts):
    said = complaint(flags=flags)
    assert all(part in said for part in parts), said


def test_a_wrong_preset_or_file_is_refused(tmp_path):
    assert "did you mean 'mnist-fast'" in complaint(preset="mnist-fst")
    family = ", ".join(sorted(name for name in presets() if name.startswith("mnist-")))
    assert f"did you mean one of {family}?" in complaint(preset="mnist")
    assert "cannot be read" in complaint(file=tmp_path / "nothing.toml")
    assert "cannot be read" in complaint(file=tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    assert "is not TOML" in complaint(file=tmp_path / "x.toml")


def test_the_constructor_checks_too():
    with pytest.raises(SpikewireError, match="epochs: 0"):
        Config(epochs=0)
    with pytest.raises(SpikewireError, match="field of gradr: unknown 'alhpa'"):
        Config(options={"alhpa": 1.0})
    with pytest.raises(SpikewireError, match=r"sparsity: unknown; did you mean connectivity=0\.1"):
        Config(options={"sparsity": 0.9})


def test_differences_name_what_decides_the_outcome():
    config = Config(epochs=3)
    assert config.differences(asdict(config)) == []
    assert config.differences(asdict(Config(epochs=3, data_dir="elsewhere", threads=2))) == []
    other = asdict(Config(epochs=4, options={"alpha": 0.5}))
    assert config.differences(other) == ["epochs", "options"]


def test_a_config_from_before_an_option_existed_had_its_default():
    config = Config(method="budget")
    old = asdict(config)
    del old["options"]["shrink"]
    assert config.differences(old) == []
    assert Config(method="budget", options={"shrink": 0.5}).differences(old) == ["options"]


@pytest.mark.parametrize(
    ("dataset", "epochs"), [("digits", 80), ("mnist", 24), ("fashion-mnist", 24), ("cifar10", 158)]
)
def test_a_data_set_brings_its_own_preset(dataset, epochs):
    config = resolve(flags={"dataset": dataset})
    assert (config.dataset, config.epochs) == (dataset, epochs)
    assert resolve("digits", flags={"dataset": dataset}).epochs == 80  # unless another is named


@pytest.mark.parametrize("network", plasticity.NETWORKS)
def test_a_network_with_a_learning_rule_brings_its_own_preset(network):
    config = resolve(flags={"model": network, "dataset": "digits"})
    preset = next(key for key, text in presets().items() if f'model = "{network}"' in text)
    assert config == resolve(preset, flags={"dataset": "digits"})


def test_without_a_preset_spikewires_own_networks_start_with_weights_that_fire(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def build(**sizes): ...\n")
    given = {"dataset": "npz:mine.npz"}
    assert resolve(flags=given).init == "firing"
    assert resolve(flags=given | {"init": "default"}).init == "default"
    assert resolve(flags=given | {"model": f"{file}:build"}).init == "default"
    assert resolve(flags=given | {"model": "wta"}).init == "default"


def test_resize_is_refused_where_it_has_no_effect():
    assert Config(dataset="folder:pictures", model="mlp", resize=32).resize == 32
    with pytest.raises(SpikewireError, match="resize: 32 .* folder:PATH"):
        Config(dataset="digits", resize=32)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("early=0.5", "--early: (0.5,) is not allowed; it must be left out without --early-time-"),
        ("momentum=0.5", "--momentum: 0.5 is not allowed; it must be left out without --optimizer"),
        ("loss=mse-rate rate_scale=3", "--rate-scale: 3.0 is not allowed; it must be left out wit"),
        ("neuron=if tau=3", "--tau: 3.0 is not allowed; it must be left out without --neuron lif"),
        (
            "method=budget price=0.3",
            "--price: 0.3 is not allowed; it must be left out without a ta",
        ),
        ("alpha=0.1 ramp=0.3", "--ramp: 0.3 is not allowed; it must be left out without a target"),
        ("alpha=0.1 every=9", "--every: 9 is not allowed; it must be left out without a target"),
    ],
)
def test_a_flag_without_effect_is_refused(flags, message):
    words = dict(pair.split("=") for pair in flags.split())
    assert refused(lambda: resolve("digits", flags=words)).startswith(message)


@pytest.mark.parametrize(
    "flags",
    [
        "early=0.5 early_time_steps=2",
        "early=0.8 early_time_steps=0",  # the default; so may a preset's early parts be left out
        "momentum=0.5 optimizer=sgd",
        "loss=ce-per-step rate_scale=3",
        "loss=mse-rate rate_scale=3 teacher=zoo:digits-5",
        "neuron=plif tau=3",
        "neuron=if readout=leaky tau=3",
        "method=budget synapses=0.1 price=0.3",
        "connectivity=0.1 ramp=0.3 every=9",
    ],
)
def test_the_same_flag_is_taken_where_it_has_an_effect(flags):
    resolve("digits", flags=dict(pair.split("=") for pair in flags.split()))


@pytest.mark.parametrize("key", OF_NETWORKS)
def test_a_setting_of_a_network_of_your_own_belongs_into_its_file(key):
    other = {"neuron": "if", "reset": "soft", "surrogate": "sigmoid", "batchnorm": "per-step"}
    words = {
        "model": "my.py:net",
        key: ({"readout": "current", "hidden": "7"} | other).get(key, "0.3"),
    }
    words |= {"tau": "3"} if key == "tau" else {}
    message = refused(lambda: resolve(flags=words))
    assert message.startswith(f"--{key}: ")
    assert message.endswith("it must be left out for a network of your own; set it in your file")
    assert resolve("cifar10-fast", flags={"model": "my.py:net"})  # the preset's own are unused


def test_a_setting_of_a_preset_without_effect_is_no_mistake_of_the_user():
    assert resolve("cifar10-fast", flags={"early_time_steps": "0", "early": "0.8"})
    assert resolve("cifar100-sew18", flags={"optimizer": "adam"}).optimizer == "adam"

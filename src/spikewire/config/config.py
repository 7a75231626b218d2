"""`Config`: the settings of a run, and the names of all settings as files and flags write them."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from spikewire.config.usual import MODEL_OF
from spikewire.errors import SpikewireError, check, not_sparsity, unknown
from spikewire.fields import (
    declared,
    defaults,
    setting,
    to_toml,
    validate,
    values,
)

if TYPE_CHECKING:
    from spikewire.pruning import Method

# flags of `spikewire train` that are no settings
RUN_FLAGS = ("preset", "config", "out", "resume", "verbose", "json", "quiet")


@dataclass(kw_only=True)
class Config:
    """Everything that decides a run; the constructor validates it and fills in what is left out.

    Args:
        options: the method's hyper-parameters by name; those left out get the method's defaults.

    All other arguments are settings: ``spikewire train --help`` lists them with their meaning.

    Raises:
        SpikewireError: for the first setting that is not valid.

    Example (no preset applies here; `resolve` starts from one, as the command line does):
        >>> Config(dataset="digits", method="budget", options={"connectivity": 0.05}, epochs=40)
    """

    dataset: str = setting(
        "digits",
        "name of a data set, or your own data",
        choices=("spikewire.data:DATASETS",),
        forms=("FILE.py:FUNCTION", "folder:PATH", "npz:FILE"),
    )
    model: str = setting(
        "auto",
        "name of a network, or your own network; auto: the one for the data set",
        choices=("auto", "spikewire.nn.models:MODELS", "spikewire.plasticity:NETWORKS"),
        forms=("FILE.py:FUNCTION",),
    )
    hidden: int = setting(
        0,
        "number of hidden neurons, for networks of any size; 0: the network's default",
        within="[0, 1e6]",
    )
    plasticity: tuple[str, ...] = setting(
        (), "list of NAME:VALUE, constants of a network with a learning rule of its own"
    )
    width: float = setting(
        1.0, "factor on the channels of the VGG, ResNet and DPAP networks", within="(0, 16]"
    )
    frames: str = setting(
        "time",
        "events of a recording are divided into time_steps frames of equal time or equal count",
        choices=("spikewire.data.events:FRAMES",),
    )
    resize: int = setting(
        0,
        "side in pixels to which images of folder:PATH are resized; 0: not resized",
        within="[0, 10000]",
    )
    method: str = setting("gradr", "pruning method", choices=("spikewire.methods:METHODS",))
    epochs: int = setting(20, "passes over the training images", within="[1, 1e9]")
    batch_size: int = setting(64, "images per step", within="[1, 1e9]")
    optimizer: str = setting("adam", "optimizer", choices=("adam", "adamw", "sgd", "rmsprop"))
    lr: float = setting(2e-3, "highest learning rate", within="(0, 1e30]")
    momentum: float = setting(0.9, "momentum of sgd and rmsprop", within="[0, 1)")
    weight_decay: float = setting(0.0, "weight decay", within="[0, inf)")
    schedule: str = setting(
        "cosine", "learning rate over the run", choices=("spikewire.schedules:RATES",)
    )
    warmup: float = setting(0.0, "fraction of the run with a rising rate", within="[0, 1)")
    loss: str = setting("ce-rate", "loss", choices=("spikewire.nn.losses:LOSSES",))
    rate_scale: float = setting(10.0, "factor on the rate in the ce losses", within="(0, inf)")
    label_smoothing: float = setting(
        0.0, "fraction of the target spread over all classes", within="[0, 1)"
    )
    synops_penalty: float = setting(
        0.0,
        "weight of a penalty on the mean number of spikes that a synapse gets per time step",
        within="[0, inf)",
    )
    average: float = setting(
        0.0, "decay of the weight average (EMA) that is tested at the end; 0: off", within="[0, 1)"
    )
    teacher: str = setting(
        "",
        "trained network to distill from: run directory, packed file, zoo:NAME, or "
        "FILE.py:FUNCTION, which returns a trained module",
    )
    teacher_weight: float = setting(0.5, "weight of the distillation loss", within="[0, 1)")
    teacher_time_steps: int = setting(
        0, "time steps of the teacher; 0: those of its own tests", within="[0, 10000]"
    )
    start: str = setting(
        "", "trained network to start from: run directory, packed file or zoo:NAME"
    )
    augment: tuple[str, ...] = setting(
        (),
        "list of crop:PX, shift:PX, flip, cutout:PX, affine:PX/DEGREES/SCALE/SHEAR, "
        "random-affine:DEGREES/SHIFT/LOW/HIGH, trivial, cutmix, time-shift:STEPS",
    )
    pixel_mean: tuple[float, ...] = setting(
        (),
        "subtracted from pixels scaled to 0..1, one number per channel; none: the data set's own",
        within="[-100, 100]",
    )
    pixel_std: tuple[float, ...] = setting(
        (),
        "by which pixels are divided after pixel_mean was subtracted, one number per channel",
        within="(0, 100]",
    )
    centre: float = setting(
        0.0,
        "subtracted from every normalised pixel; black then feeds the first layer too, like a bias",
        within="[-100, 100]",
    )
    time_steps: int = setting(8, "time steps per image", within="[1, 10000]")
    early_time_steps: tuple[int, ...] = setting(
        (0,),
        "time steps in early parts of the run, one number per part; 0: those of time_steps",
        within="[0, 10000]",
    )
    early: tuple[float, ...] = setting(
        (0.8,), "fraction of the run at which each early part ends", within="[0, 1)"
    )
    readout: str = setting(
        "spikes", "what the output is read from", choices=("spikewire.nn.models:READOUTS",)
    )
    neuron: str = setting("lif", "neuron", choices=("spikewire.nn.neurons:NEURONS",))
    tau: float = setting(2.0, "membrane time constant", within="[1, inf)")
    threshold: float = setting(1.0, "firing threshold", within="(0, inf)")
    reset: str = setting(
        "hard",
        "voltage after a spike; hard: set to rest, soft: reduced by the threshold",
        choices=("spikewire.nn.neurons:RESETS",),
    )
    surrogate: str = setting(
        "atan", "surrogate gradient", choices=("spikewire.nn.surrogates:SURROGATES",)
    )
    dropout: float | None = setting(None, "dropout; none: the model's own", within="[0, 1)")
    batchnorm: str = setting(
        "joint",
        "BatchNorm statistics; joint: over all time steps, per-step: each its own, not fused",
        choices=("spikewire.nn.batchnorm:BATCHNORMS",),
    )
    init: str = setting(
        "default",
        "initial weights; firing: scaled so that no layer is silent, as in runs without a preset",
        choices=("default", "firing"),
    )
    precision: str = setting("fp32", "floating-point precision", choices=("fp32", "bf16"))
    channels_last: bool = setting(False, "memory layout of images and convolutions")
    compile: bool = setting(False, "use torch.compile")
    graph: bool | None = setting(
        None, "run forward and backward as a CUDA graph; none: where possible, unless compiled"
    )
    sync_batchnorm: bool = setting(
        False, "BatchNorm statistics over all ranks of torchrun, on GPUs; without fused kernels"
    )
    device: str = setting("auto", "device", choices=("auto", "cpu", "cuda"), free=True)
    threads: int = setting(0, "CPU threads; 0: torch's default", within="[0, 1024]", free=True)
    seed: int = setting(0, "seed of every random choice", within="[0, inf)")
    hold_out: int = setting(
        0, "test on this many training images instead of the test set", within="[0, inf)"
    )
    eval_batch_size: int = setting(500, "images per test batch", within="[1, 1e9]")
    test_every: int = setting(
        1, "epochs between tests; the last epoch is always tested", within="[1, 1e9]", free=True
    )
    checkpoint_every: int = setting(1, "epochs between checkpoints", within="[1, 1e9]", free=True)
    trace_every: int = setting(
        0, "epochs between traces for the report; 0: 20 per run", within="[0, inf)", free=True
    )
    tensorboard: bool = setting(False, "write TensorBoard events", free=True)
    data_dir: str = setting("", "directory of the data sets; none: the default", free=True)
    options: dict[str, Any] = field(default_factory=dict)

    unconfirmed = tuple[str, ...]()  # settings that a file, not the user, gave a Python file for

    def __post_init__(self) -> None:
        validate(self)
        check(not (self.graph and self.compile), "graph", True, "false together with compile")
        free = not (self.synops_penalty and self.compile)
        check(free, "synops_penalty", self.synops_penalty, "0 together with compile")
        joint = self.batchnorm == "joint" or not self.sync_batchnorm
        check(joint, "batchnorm", self.batchnorm, "joint together with sync_batchnorm")
        taught = bool(self.teacher) or not self.teacher_time_steps
        check(taught, "teacher_time_steps", self.teacher_time_steps, "0 without a teacher")
        usual = defaults(Config)["teacher_weight"]
        taught = bool(self.teacher) or self.teacher_weight == usual
        check(taught, "teacher_weight", self.teacher_weight, f"{usual}, unused, without a teacher")
        folder = self.dataset.startswith("folder:") or not self.resize
        check(folder, "resize", self.resize, "0 unless the data set is folder:PATH")
        parts, in_order = len(self.early_time_steps), sorted(self.early) == list(self.early)
        expected = f"{parts} fractions in order, one for each of early_time_steps"
        check(parts == len(self.early) and in_order, "early", self.early, expected)
        if self.model == "auto":  # that of own data is chosen when the data are known
            self.model = MODEL_OF.get(self.dataset, "auto")
        for spec in self.augment:
            import_module("spikewire.data.augment").parse(spec)
        trained = methods()[self.method].for_trained if self.start else {}
        self.options = _completed(self.method, {**trained, **self.options})

    def confirm(self, key: str) -> str:
        """Return the Python function that a setting names, if the user has named it themselves.

        Args:
            key: ``"dataset"``, ``"model"`` or ``"teacher"``.

        Raises:
            SpikewireError: If it was read from a file, such as that of a run directory.
        """
        value = getattr(self, key)
        if key in self.unconfirmed:
            raise SpikewireError(
                f"{key}: {value} is Python code that a file names, and is executed only if you "
                f"name it too; add {flag(key)} {value}"
            )
        return value

    def build_method(self) -> "Method":
        """Return the method with its options."""
        return methods()[self.method](**self.options)

    @property
    def unit(self) -> str:
        """The unit of the target, such as ``"connectivity"``; "" where the method has none."""
        return self.build_method().unit

    @property
    def dataset_name(self) -> str:
        """Name of the data set for run directories; of a file of your own, that of the file."""
        return import_module("spikewire.data.reference").short_name(self.dataset)

    @property
    def target(self) -> float | None:
        """The target in its unit; None where the method has none."""
        return self.options.get(self.unit)

    def to_toml(self) -> str:
        """Return the resolved settings as TOML text; `None` is left out."""
        values = asdict(self)
        options = values.pop("options")
        section = f"\n[{self.method}]\n{to_toml(options)}" if options else ""
        return to_toml(values) + section

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Return the fields that decide the outcome and differ from a saved ``asdict(config)``."""
        mine, rules = asdict(self), settings()
        if other.get("method") == self.method:  # options added since were at their defaults
            known = method_defaults(self.method) | dict(other.get("options", {}))
            other = {**other, "options": {key: known[key] for key in mine["options"]}}
        decisive = [key for key in mine if not (key in rules and rules[key].metadata["free"])]
        return [key for key in decisive if key in other and mine[key] != other[key]]


def settings() -> dict[str, Field]:
    """Return the fields a file or a flag may set, by name."""
    return declared(Config)


def method_fields(method: str) -> dict[str, Field]:
    """Return the declarations of a method's hyper-parameters by name."""
    return declared(methods()[method])


def method_defaults(method: str) -> dict[str, Any]:
    """Return the defaults of a method's fields; `MISSING` where one must be given."""
    return defaults(methods()[method])


def collisions() -> set[str]:
    """Return the method fields that would hide a setting or a flag; there must be none."""
    taken = {*settings(), *RUN_FLAGS}
    return taken & {key for method in methods() for key in method_fields(method)}


def flag(key: str) -> str:
    """Return a field's name as a flag."""
    return "--" + key.replace("_", "-")


def words_of(flags: Mapping[str, str]) -> list[str]:
    """Return flags as command-line words; a value with a leading dash is joined by ``=``."""
    words = []
    for key, value in flags.items():
        words += [f"{flag(key)}={value}"] if value.startswith("-") else [flag(key), value]
    return words


def _completed(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all of the method's fields; the method fills in those left out."""
    kind = methods()[method]
    rules = method_fields(method)
    for key in options.keys() - rules.keys():
        if key == "sparsity":
            raise not_sparsity(key, options[key], "connectivity={}")
        raise unknown(f"field of {method}", key, rules)
    for key, default in method_defaults(method).items():
        check(key in options or default is not MISSING, key, None, f"given for {method!r}")
    return values(kind(**options))


def methods() -> dict[str, type["Method"]]:
    """Return the classes of the methods by name."""
    return import_module("spikewire.methods").METHODS

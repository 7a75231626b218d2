"""Settings of a run: dataclass <-> TOML <-> flags; presets; each mistake in one line.

Order: defaults < preset < file < flags. TOML's top level holds the fields of `Config`; a section
named like a method (``[gradr]``) holds that method's fields. Flags are text, read as TOML would be.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from importlib import import_module, resources
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from spikewire.errors import SpikewireError, check, unknown

if TYPE_CHECKING:
    from spikewire.pruning.method import Method

Bound = tuple[Callable[[Any], bool], str]
POSITIVE: Bound = (lambda value: value > 0 and isfinite(value), "above 0")
RATE: Bound = (lambda value: 0 < value <= 1e30, "above 0")  # float32 ends soon after
NATURAL: Bound = (lambda value: value >= 0, "0 or more")
AMOUNT: Bound = (lambda value: value >= 0 and isfinite(value), "0 or more")
COUNT: Bound = (lambda value: 1 <= value <= 1e9, "1 or more, up to 1e9")
SHARE: Bound = (lambda value: 0 <= value < 1, "in [0, 1)")
STEPS_OF_PARTS: Bound = (lambda parts: all(0 <= n <= 10_000 for n in parts), "0 to 10000")
ENDS_OF_PARTS: Bound = (
    lambda ends: list(ends) == sorted(ends) and all(0 <= end < 1 for end in ends),
    "in [0, 1) and in order",
)

RUN_FLAGS = ("preset", "config", "out", "resume")  # flags of `spikewire train` that are no settings
MODEL_OF = {
    "digits": "digits-mlp",
    "mnist": "mnist-mlp",
    "fashion-mnist": "mnist-mlp",
    "cifar10": "cifar10-conv",
}
PRESET_OF = {"mnist": "mnist-fast", "fashion-mnist": "mnist-fast", "cifar10": "cifar10-fast"}
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def between(low: int, high: int) -> Bound:
    """Return the bound of a number that must be in ``low .. high``."""
    return lambda value: low <= value <= high, f"{low} to {high}"


def setting(default: Any, help: str, **rules: Any) -> Any:
    """Return a field with its help and rules.

    `words` (a tuple, or ``module:REGISTRY``) and `bound` say what is allowed; `free` fields may
    change at a resume, since they do not decide what is computed.
    """
    return field(default=default, metadata={"help": help, **rules})


@dataclass(kw_only=True)
class Config:
    """Everything that decides a run; the constructor checks it and fills in what is left out."""

    dataset: str = setting("digits", "data set", words="spikewire.data:DATASETS")
    model: str = setting(
        "auto", "network; auto: the data set's own", words="spikewire.nn.models:MODELS"
    )
    method: str = setting("gradr", "how it is wired", words="spikewire.methods:METHODS")
    epochs: int = setting(20, "passes over the training images", bound=COUNT)
    batch_size: int = setting(64, "images a step", bound=COUNT)
    optimizer: str = setting("adam", "optimizer", words=("adam", "adamw", "sgd", "rmsprop"))
    lr: float = setting(2e-3, "highest learning rate", bound=RATE)
    momentum: float = setting(0.9, "momentum of sgd and rmsprop", bound=SHARE)
    weight_decay: float = setting(0.0, "weight decay", bound=AMOUNT)
    schedule: str = setting(
        "cosine", "learning rate over the run", words="spikewire.schedules:RATES"
    )
    warmup: float = setting(0.0, "share of the run with a rising rate", bound=SHARE)
    loss: str = setting("ce-rate", "loss", words="spikewire.nn.losses:LOSSES")
    rate_scale: float = setting(10.0, "factor on the rate in the ce losses", bound=POSITIVE)
    label_smoothing: float = setting(
        0.0, "share of the target spread over all classes", bound=SHARE
    )
    average: float = setting(
        0.0, "decay of the mean of weights tested at the end; 0: off", bound=SHARE
    )
    teacher: str = setting("", "run directory of a trained network to learn from as well")
    teacher_weight: float = setting(0.5, "share of the teacher's lesson in the loss", bound=SHARE)
    start: str = setting("", "run directory of a trained network whose weights to begin with")
    augment: tuple[str, ...] = setting(
        (), "list of crop:4 shift:1 flip cutout:8 affine elastic colour cutmix"
    )
    centre: float = setting(
        0.0,
        "taken from every normalised pixel; black then feeds the first layer too, like a bias",
        bound=(lambda centre: abs(centre) <= 100, "-100 to 100"),
    )
    time_steps: int = setting(8, "time steps an image is shown", bound=between(1, 10_000))
    early_time_steps: tuple[int, ...] = setting(
        (0,), "time steps in the early part, or in each of several; 0: all", bound=STEPS_OF_PARTS
    )
    early: tuple[float, ...] = setting(
        (0.8,), "share of the run where that part ends, or each of them", bound=ENDS_OF_PARTS
    )
    readout: str = setting(
        "spikes", "what the output is read from", words="spikewire.nn.models:READOUTS"
    )
    neuron: str = setting("lif", "neuron", words="spikewire.nn.neurons:NEURONS")
    tau: float = setting(2.0, "membrane time constant", bound=(lambda tau: tau >= 1, "1 or more"))
    threshold: float = setting(1.0, "firing threshold", bound=POSITIVE)
    reset: str = setting(
        "hard",
        "voltage after a spike; hard: at rest, soft: less by the threshold",
        words="spikewire.nn.neurons:RESETS",
    )
    surrogate: str = setting("atan", "surrogate gradient", words="spikewire.nn.neurons:SURROGATES")
    dropout: float | None = setting(None, "dropout; left out: the model's own", bound=SHARE)
    init: str = setting(
        "default", "weights without a start; firing: no silent layer", words=("default", "firing")
    )
    precision: str = setting("fp32", "arithmetic", words=("fp32", "bf16"))
    channels_last: bool = setting(False, "memory layout of images and convolutions")
    compile: bool = setting(False, "use torch.compile")
    graph: bool = setting(False, "forward and backward as a CUDA graph, where there can be one")
    sync_batchnorm: bool = setting(
        False, "BatchNorm statistics over all ranks of torchrun, on GPUs; without fused kernels"
    )
    device: str = setting("auto", "device", words=("auto", "cpu", "cuda"), free=True)
    threads: int = setting(0, "CPU threads; 0: torch's choice", bound=between(0, 1024), free=True)
    seed: int = setting(0, "seed of every random choice", bound=NATURAL)
    hold_out: int = setting(0, "test on so many training images, not the test set", bound=NATURAL)
    eval_batch_size: int = setting(500, "images a test batch", bound=COUNT)
    test_every: int = setting(1, "epochs between tests; the last is tested", bound=COUNT, free=True)
    checkpoint_every: int = setting(1, "epochs between checkpoints", bound=COUNT, free=True)
    trace_every: int = setting(
        0, "epochs between traces for the report; 0: 20 a run", bound=NATURAL, free=True
    )
    tensorboard: bool = setting(False, "write TensorBoard events", free=True)
    data_dir: str = setting("", "where data sets lie; empty: the default place", free=True)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, rule in settings().items():
            setattr(self, key, _checked(rule, getattr(self, key)))
        check(not (self.graph and self.compile), "graph", True, "false together with compile")
        parts = len(self.early_time_steps)
        wanted = f"{parts} shares, one for each of early_time_steps"
        check(parts == len(self.early), "early", self.early, wanted)
        if self.model == "auto":
            self.model = MODEL_OF[self.dataset]
        for spec in self.augment:
            import_module("spikewire.data.augment").parse(spec)
        self.options = _completed(self.method, self.options)

    def build_method(self) -> "Method":
        """Return the method with its options."""
        return _methods()[self.method](**self.options)

    @property
    def asked(self) -> float | None:
        """The connectivity asked for, where the method takes one."""
        return self.options.get("connectivity")

    def to_toml(self) -> str:
        """Return the resolved settings as TOML text; `None` is left out."""
        values = asdict(self)
        options = values.pop("options")
        sections = [_lines(values), *([f"\n[{self.method}]\n", _lines(options)] if options else [])]
        return "".join(sections)

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Return the fields that decide the outcome and differ from a saved ``asdict(config)``."""
        mine, rules = asdict(self), settings()
        if other.get("method") == self.method:  # options that came later were at their defaults
            known = method_defaults(self.method) | dict(other.get("options", {}))
            other = {**other, "options": {key: known[key] for key in mine["options"]}}
        shared = [key for key in mine if key in other]
        return [
            key
            for key in shared
            if mine[key] != other[key] and not (key in rules and rules[key].metadata.get("free"))
        ]


def settings() -> dict[str, Field]:
    """Return the fields a file or a flag may set, by name."""
    return {rule.name: rule for rule in fields(Config) if rule.name != "options"}


def method_fields(method: str) -> dict[str, Field]:
    """Return a method's hyper-parameters by name."""
    return {rule.name: rule for rule in fields(_methods()[method]) if rule.init}


def method_defaults(method: str) -> dict[str, Any]:
    """Return the defaults of a method's fields; `MISSING` where one must be given."""
    return {key: getattr(_methods()[method], key, MISSING) for key in method_fields(method)}


def collisions() -> set[str]:
    """Return the method fields that would hide a setting or a flag; there must be none."""
    taken = {*settings(), *RUN_FLAGS}
    return taken & {key for method in _methods() for key in method_fields(method)}


def allowed_words(rule: Field) -> tuple[str, ...]:
    """Return the words a setting may be, none where it is free."""
    words = rule.metadata.get("words", ())
    if isinstance(words, str):
        module, _, registry = words.partition(":")
        words = tuple(getattr(import_module(module), registry))
    return words


def flag(key: str) -> str:
    """Return a field's name as a flag."""
    return "--" + key.replace("_", "-")


def words_of(flags: Mapping[str, str]) -> list[str]:
    """Return flags as words; a value that begins with a dash could be taken for another flag."""
    words = []
    for key, value in flags.items():
        words += [f"{flag(key)}={value}"] if value.startswith("-") else [flag(key), value]
    return words


def presets() -> dict[str, str]:
    """Return the TOML text of each preset that comes with the package."""
    folder = resources.files("spikewire").joinpath("presets")
    found = (entry for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return {entry.name.removesuffix(".toml"): entry.read_text("utf-8") for entry in found}


def resolve(
    preset: str | None = None,
    file: str | Path | None = None,
    flags: Mapping[str, str] | None = None,
) -> Config:
    """Return the settings of a run; without preset and file it is the data set's own preset."""
    for key, name in (("preset", preset), ("config", file)):
        check(name != "", flag(key), name, "a name")
    layers: list[tuple[str, dict[str, Any]]] = []
    if preset or not file:
        known = presets()
        name = preset or PRESET_OF.get((flags or {}).get("dataset", ""), "digits")
        if name not in known:
            raise unknown("--preset", name, known)
        layers += _preset(name, known)
    if file:
        layers.append((str(file), _read(Path(file))))
    return _merge(layers, flags or {})


def _preset(name: str, known: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the preset's table, after that of the preset it says it is laid over."""
    table = tomllib.loads(known[name])
    under = table.pop("preset", None)
    return [*(_preset(under, known) if under else []), (f"preset {name}", table)]


def _merge(layers: list[tuple[str, dict[str, Any]]], flags: Mapping[str, str]) -> Config:
    """Lay one table over the other; an error then names where its value came from."""
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, table in layers:
        for key, value in _top(name, table):
            values[key], origin[key] = value, f"{name}: {key}"
    for key in flags.keys() & settings().keys():
        values[key], origin[key] = _parse(flags[key], get_type_hints(Config)[key]), flag(key)
    try:
        method = _checked(settings()["method"], values.get("method", Config.method))
        values["options"] = options = {}
        for name, table in layers:
            _overlay_(options, table.get(method, {}), method)
            origin |= {key: f"{name}: [{method}] {key}" for key in table.get(method, {})}
        _overlay_(options, given := _method_flags(flags, method), method)
        origin |= {key: flag(key) for key in given}
        return Config(**values)
    except SpikewireError as error:
        key, _, rest = str(error).partition(":")
        raise SpikewireError(f"{origin.get(key, key)}:{rest}") from None


def _overlay_(options: dict[str, Any], upper: Mapping[str, Any], method: str) -> None:
    """Lay `upper` over `options`; of fields that exclude each other the upper one stays."""
    exclusive = set(_methods()[method].exclusive)
    if exclusive & upper.keys():
        for key in exclusive & options.keys():
            del options[key]
    options.update(upper)


def _method_flags(flags: Mapping[str, str], method: str) -> dict[str, Any]:
    """Return the flags that are the method's fields, read by their types."""
    hints = get_type_hints(_methods()[method])
    for key in flags.keys() - settings().keys() - method_fields(method).keys():
        raise _misplaced(key, method)
    return {key: _parse(text, hints[key]) for key, text in flags.items() if key not in settings()}


def _top(name: str, table: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yield a table's settings; refuse what is neither a setting nor a method's field."""
    methods, known = _methods(), settings()
    for key, value in table.items():
        if isinstance(value, dict):
            if key not in methods:
                raise unknown(f"{name}: section", key, methods)
            for word in value.keys() - method_fields(key).keys():
                raise unknown(f"{name}: field of [{key}]", word, method_fields(key))
        elif key not in known:
            raise unknown(f"{name}: field", key, known)
        else:
            yield key, value


def _misplaced(key: str, method: str) -> SpikewireError:
    """Return the error for a flag of another method, or of none."""
    others = sorted(name for name in _methods() if key in method_fields(name))
    if others:
        return SpikewireError(f"{flag(key)}: belongs to {', '.join(others)}, not to {method!r}")
    return unknown("flag", flag(key), map(flag, [*settings(), *method_fields(method)]))


def _checked(rule: Field, value: Any) -> Any:
    """Return the value in the field's type, or raise."""
    value = _coerce(rule.name, value, get_type_hints(Config)[rule.name])
    words = allowed_words(rule)
    if words and value not in words and (rule.name, value) != ("model", "auto"):
        raise unknown(rule.name, value, words)
    holds, allowed = rule.metadata.get("bound", (lambda _: True, ""))
    check(value is None or holds(value), rule.name, value, allowed)
    return value


def _completed(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all of the method's fields, as the method itself fills in those left out."""
    kind = _methods()[method]
    rules, hints = method_fields(method), get_type_hints(kind)
    for key in options.keys() - rules.keys():
        raise unknown(f"field of {method}", key, rules)
    for key, default in method_defaults(method).items():
        check(key in options or default is not MISSING, key, None, f"given for {method!r}")
    given = {key: _coerce(key, value, hints[key]) for key, value in options.items()}
    return kind(**given).options()


def _coerce(key: str, value: Any, kind: Any) -> Any:
    """Return `value` as `kind` if TOML's value is of it; an integer is a number too."""
    if get_origin(kind) in (Union, UnionType):
        kinds = [one for one in get_args(kind) if one is not NoneType]
        return value if value is None else _coerce(key, value, kinds[0])
    if get_origin(kind) is tuple:
        one = get_args(kind)[0]
        if isinstance(value, str):
            words = [] if value == "none" else map(str.strip, value.split(","))
            parts = [_parse(word, one) for word in words if word]
        else:
            parts = value if isinstance(value, list | tuple) else [value]
        return tuple(_coerce(key, part, one) for part in parts)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise unknown(key, value, get_args(kind))
        return value
    small = type(value) is not int or -(2**63) <= value < 2**63
    check(small, key, "a number of that size", "below 2^63")
    if kind is float and type(value) is int:
        return float(value)
    check(kind not in KINDS or type(value) is kind, key, value, KINDS.get(kind, ""))
    check(kind is not str or _writable(value), key, value, "UTF-8 text without NUL")
    return value


def _writable(text: Any) -> bool:
    """Tell whether the text can be written in a file and be part of a path."""
    return not any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text)


def _parse(text: str, kind: Any) -> Any:
    """Return what TOML would have read; text that does not fit is left for `_coerce` to refuse."""
    if get_origin(kind) in (Union, UnionType):
        kind = next(one for one in get_args(kind) if one is not NoneType)
    try:
        if kind is bool:
            return {"true": True, "false": False}.get(text.lower(), text)
        return kind(text) if kind in (int, float) else text
    except ValueError:
        return text


def _lines(values: Mapping[str, Any]) -> str:
    """Return ``key = value`` lines of TOML."""
    return "".join(
        f"{key} = {_toml(value)}\n" for key, value in values.items() if value is not None
    )


def _toml(value: Any) -> str:
    """Return one value as TOML; JSON's strings are TOML's, but for DEL."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read(path: Path) -> dict[str, Any]:
    """Return a TOML file's table."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SpikewireError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # malformed, wrong encoding, nested too deeply
        raise SpikewireError(f"{path}: is not TOML: {error}") from None


def _methods() -> dict[str, type["Method"]]:
    return import_module("spikewire.methods").METHODS

"""`spikewire presets`, and the settings of a run that differ from its preset."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict
from typing import Any

from spikewire.cli.flags import Parser
from spikewire.cli.show import first_line, print_line, print_table
from spikewire.config import (
    Config,
    method_defaults,
    preset_toml,
    resolve,
    starting_preset,
)
from spikewire.config import presets as preset_texts
from spikewire.errors import check_word
from spikewire.fields import show, to_toml


def presets(arguments: Sequence[str]) -> None:
    """List the presets; `spikewire presets NAME` prints one as TOML, which --config reads."""
    parser = Parser("presets", presets.__doc__ or "")
    parser.add_argument("name", nargs="?", metavar="NAME", help="preset to print as TOML")
    name, texts = parser.read(arguments)["name"], preset_texts()
    if name is not None:
        check_word("preset", name, texts)
        print(preset_toml(name), end="")
        return
    rows = []
    for name in sorted(texts):
        config, about = resolve(name), first_line(texts[name]).removeprefix("# ")
        rows.append((name, config.dataset, config.method, str(config.epochs), about))
    print_table(("preset", "data set", "method", "epochs", "description"), rows)
    print_line("spikewire presets NAME prints its settings; spikewire train --preset NAME trains")


def changed_settings(config: Config, given: Mapping[str, Any]) -> str:
    """Return as TOML the settings that differ from those the run started from.

    Args:
        config: the settings of the run.
        given: the flags of `spikewire train`.
    """
    if run := given.get("resume"):
        from spikewire.runs import RunDir

        title, method = f"resumed with the settings of {run}", config.method
        base = RunDir(run).config()
    else:
        name = starting_preset(given)
        title = f"preset {name}" if name else "no preset"
        method = (resolve(name) if name else Config()).method
        base = preset_for(name, config)
    values, before = asdict(config), asdict(base) | {"method": method}
    options, old = values.pop("options"), before.pop("options")
    changed = {key: value for key, value in values.items() if value != before[key]}
    fields = {key: value for key, value in options.items() if value != old[key]}
    section = f"\n[{config.method}]\n{to_toml(fields)}" if fields else ""
    trained = f"method {config.method}, network {config.model}, data {config.dataset}"
    return f"# {title}: {trained}; -v shows all settings\n{to_toml(changed)}{section}"


def preset_for(name: str | None, config: Config) -> Config:
    """Return the preset, or the defaults, with the method of `config`."""
    required = [key for key, value in method_defaults(config.method).items() if value is MISSING]
    options = {key: config.options[key] for key in required}
    if not name:
        return Config(method=config.method, options=options)
    texts = {key: show(value) for key, value in options.items()}
    return resolve(name, flags={"method": config.method, **texts})

"""Write the generated parts of docs/methods/*.md: the fields of each method, and its results.

``make pages`` runs it; ``tests/test_docs.py`` fails if a page differs from what it would write.
Fields come from the settings of the method's class, results from the tables of docs/results.md.
"""

import re
from collections.abc import Iterator
from dataclasses import Field
from pathlib import Path

from spikewire import METHODS
from spikewire.fields import choices_of, declared, defaults, show

DOCS = Path(__file__).parent.parent
RESULTS = DOCS / "results.md"
TABLE = re.compile(r"(^\|.*\n\|[-|: ]+\|\n)((?:^\|.*\n)+)", re.MULTILINE)


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def fields(name: str) -> str:
    """Return the table of a method's fields: default, accepted values, meaning."""
    values = defaults(METHODS[name])
    usual = getattr(METHODS[name], "default", None)
    if usual and values["connectivity"] is None:
        values["connectivity"] = f"{usual} without another target"
    rows = [
        f"| `{key}` | {show(values[key])} | {accepts(rule)} | {meaning(rule)} |"
        for key, rule in declared(METHODS[name]).items()
    ]
    return "\n".join(["| field | default | accepts | meaning |", "|---|---|---|---|", *rows])


def meaning(rule: Field) -> str:
    """Return the help text of a field in one cell."""
    return rule.metadata["help"].replace("|", "\\|")


def accepts(rule: Field) -> str:
    """Return the values of a field in one cell."""
    if rule.type is bool:
        return "true, false"
    return rule.metadata["within"] or ", ".join(choices_of(rule))


def results(name: str) -> str:
    """Return the method's rows of each table in results.md, below a link to its section."""
    found = [
        f"[{heading}](../results.md#{anchor(heading)}):\n\n{head}{rows}"
        for heading, head, rows in tables(RESULTS.read_text("utf-8"), name)
    ]
    if not found:
        return "None in [results.md](../results.md) yet."
    note = "Rows of [results.md](../results.md), where their commands and notes are."
    return "\n".join([note + "\n", *found]).rstrip()


def tables(page: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield heading, first two lines and rows of every table with rows of this method."""
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        for head, body in TABLE.findall(section):
            rows = re.findall(rf"^\| `?{name}`?(?: \||,).*\n", body, re.MULTILINE)
            if rows:
                yield section.partition("\n")[0], head, "".join(rows)


def fill(page: str, name: str) -> str:
    """Return a page with its generated parts replaced."""
    for key, write in {"fields": fields, "results": results}.items():
        pattern = re.compile(rf"(<!-- {key} -->\n).*?(<!-- end -->)", re.DOTALL)
        page = pattern.sub(lambda found: f"{found[1]}\n{write(name)}\n\n{found[2]}", page)  # noqa: B023
    return page


def pages() -> Iterator[tuple[Path, str, str]]:
    """Yield path, current text and wanted text of the page of each method."""
    for name in METHODS:
        path = DOCS / "methods" / f"{name}.md"
        text = path.read_text("utf-8")
        yield path, text, fill(text, name)


if __name__ == "__main__":
    for path, _, wanted in pages():
        path.write_text(wanted, "utf-8")

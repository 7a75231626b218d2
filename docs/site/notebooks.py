"""Notebooks as pages: text, code, and the outputs that are stored in the file."""

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def to_markdown(notebook: str) -> str:
    """Return a notebook, given as JSON, in Markdown."""
    return "\n\n".join(part for cell in json.loads(notebook)["cells"] for part in parts(cell))


def parts(cell: dict[str, Any]) -> Iterator[str]:
    """Yield a cell's source and its outputs."""
    source = "".join(cell["source"])
    yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
    for output in cell.get("outputs", []):
        yield shown(output)


def shown(output: dict[str, Any]) -> str:
    """Return an output: a picture if it has one, else its text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="figure" src="data:image/png;base64,{data["image/png"].strip()}">'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f'<pre class="output">{escape(text.rstrip())}</pre>'

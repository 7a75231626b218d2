"""Docstrings as the Markdown that the site renders: examples as code, ``::`` as a plain colon."""

import re
from typing import Any

from griffe import Extension, Object


class Docstrings(Extension):
    """Rewrite each docstring once it is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Let ``Example:`` be a section with highlighted code, and drop the mark of reST."""
        if obj.docstring:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            text = re.sub(
                r" \(default [^()]*\)\.$", ".", text, flags=re.MULTILINE
            )  # in the signature
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)

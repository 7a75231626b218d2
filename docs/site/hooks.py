"""Hooks of mkdocs: navigation, pages made from other files, API reference, links, equations.

The pages of docs/ are written for GitHub and are read as they are. The navigation follows
docs/README.md. A link that leaves docs/ leads to the page made from that file, or to the
repository.
"""

import importlib.util
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent


def sibling(name: str) -> ModuleType:
    """Import a file of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


api, notebooks = sibling("api"), sibling("notebooks")

# page of the site: file of the repository that it is made from, for files outside docs/
MADE_FROM = {
    "index.md": "README.md",
    "contents.md": "docs/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "results-files.md": "results/README.md",
    **{f"notebooks/{path.stem}.md": str(path.relative_to(ROOT)) for path in notebooks.FILES},
}
PAGE_OF = {file: page for page, file in MADE_FROM.items()}
CODE = r"^```.*?^```$|`[^`\n]+`"
LINK = re.compile(
    rf"{CODE}|(?<=\]\()[^)\s]+|(?<=src=\")[^\"]+|(?<=srcset=\")[^\"]+", re.DOTALL | re.MULTILINE
)

# a picture for GitHub, which follows the browser; on the site it follows the site's own theme
PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img alt="([^"]*)" src="([^"]+)">\s*</picture>'
)
BY_THEME = r'<img alt="\2" src="\3#only-light"><img alt="\2" src="\1#only-dark">'


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation, and render ``math`` blocks as MathML, which needs no script."""
    home = {"Home": ["index.md", "contents.md", "changelog.md", "results-files.md"]}
    config.nav = [home, *navigation(), {"API": list(api.pages())}]
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "math", "class": "math", "format": equation}]
    return config


def equation(source: str, *_: Any, **__: Any) -> str:
    """Return an equation in LaTeX as MathML."""
    return convert(source.strip(), display="block")


def navigation() -> Iterator[dict[str, list[Any]]]:
    """Yield the sections of docs/README.md with their pages."""
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    for title, lines in re.findall(r"^(\w[^,:\n]*).*:\n\n((?:- .*\n)+)", index, re.MULTILINE):
        links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", lines, re.MULTILINE)
        yield {title: [entry(page_of(posixpath.join("docs", link))) for link in links]}


def entry(page: str) -> str | dict[str, list[str]]:
    """Return a page, or a section where there is a folder of the same name."""
    folder = ROOT / "docs" / page.removesuffix(".md")
    if not folder.is_dir():
        return page
    index = (ROOT / "docs" / page).read_text("utf-8")
    below = re.findall(rf"\]\(({folder.name}/[\w-]+\.md)\)", index)
    return {folder.name.capitalize(): [page, *below]}


def page_of(file: str) -> str:
    """Return the page of a file of the repository; an empty text where it has none."""
    file = posixpath.normpath(file)
    inside = file.startswith("docs/") and not file.startswith("docs/site/")
    return PAGE_OF.get(file) or (file.removeprefix("docs/") if inside else "")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages made from other files, and the API reference."""
    index = files.get_file_from_path("README.md")
    if index:
        files.remove(index)
    for page, file in MADE_FROM.items():
        text = (ROOT / file).read_text("utf-8")
        made = notebooks.to_markdown(text) if file.endswith(".ipynb") else text
        files.append(File.generated(config, page, content=made))
    for page, text in api.pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the pages of the site or to the repository, and show pictures by theme."""
    source = page.file.src_uri
    folder = posixpath.dirname(MADE_FROM.get(source, f"docs/{source}"))

    def lead(found: re.Match[str]) -> str:
        path, hash, anchor = found[0].partition("#")
        if found[0].startswith("`") or not path or re.match(r"[a-z]+:", path):
            return found[0]
        file = posixpath.normpath(posixpath.join(folder, path))
        target = page_of(file)
        if not target or (ROOT / file).is_dir():
            kind = "tree" if (ROOT / file).is_dir() else "blob"
            return f"{config.repo_url}/{kind}/main/{file}{hash}{anchor}"
        return posixpath.relpath(target, posixpath.dirname(source) or ".") + hash + anchor

    return PICTURE.sub(BY_THEME, LINK.sub(lead, markdown))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Leave the link to the repository, but not the script that asks GitHub for its stars."""
    return output.replace(' data-md-component="source"', "")

"""Hooks for mkdocs: links that leave docs/ are redirected to copies within the site.

A page of the site may link to any file of the repository. Markdown becomes a page, source code a page that shows it, a
notebook a page with what its cells showed, anything else a file to download. A link to a file that does not exist is
left as it is, and fails the strict build.
"""

import json
import os
import pathlib
import re
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)#:\s]+)(?=[#)])")
SHOWN = (".py", ".ipynb")  # as pages


def on_files(files: Files, config: Any) -> Files:
    """Add the targets of links to files outside docs/, and the targets of their links in turn."""
    pages = [pathlib.Path(file.abs_src_path) for file in files.documentation_pages()]
    known = set(pages)
    while pages:
        for real in _outside(pages.pop()):
            if real not in known:
                known.add(real)
                files.append(_copy(real, config))
                pages += [real] if real.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Redirect the links of a page to the places of their targets in the site."""
    name = page.file.src_uri
    source = DOCS / name if (DOCS / name).exists() else ROOT / name

    def moved(match: re.Match[str]) -> str:
        real = (source.parent / match[2]).resolve()
        if not real.is_file():
            return match[0]
        return match[1] + os.path.relpath(_place(real), pathlib.PurePath(name).parent)

    return LINK.sub(moved, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Remove Sphinx roles, and double colons before formulas, from docstrings."""
    html = re.sub(r":(?:func|class|mod|meth|attr|data):(?=<code>)", "", html)
    return html.replace("<p>::</p>", "").replace("::</p>", ":</p>")


def _outside(page: pathlib.Path) -> list[pathlib.Path]:
    targets = [(page.parent / target).resolve() for _, target in LINK.findall(page.read_text())]
    return [real for real in targets if real.is_file() and real.is_relative_to(ROOT) and not real.is_relative_to(DOCS)]


def _place(real: pathlib.Path) -> str:
    if real.is_relative_to(DOCS):
        return real.relative_to(DOCS).as_posix()
    return real.relative_to(ROOT).as_posix() + (".md" if real.suffix in SHOWN else "")


def _copy(real: pathlib.Path, config: Any) -> File:
    content: str | bytes = real.read_bytes()
    if real.suffix == ".py":
        content = f"# {real.name}\n\n```python\n{real.read_text()}```\n"
    elif real.suffix == ".ipynb":
        content = "\n\n".join(part for cell in json.loads(content)["cells"] for part in _parts(cell))
    return File.generated(config, _place(real), content=content, inclusion=InclusionLevel.NOT_IN_NAV)


def _parts(cell: Any) -> list[str]:
    """Return a notebook's cell as Markdown, with its output."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *map(_shown, cell["outputs"])]


def _shown(output: Any) -> str:
    """Return the best representation of an output that this page can show."""
    forms = output.get("data", {"text/plain": output.get("text", [])})
    if "image/png" in forms:
        picture = "".join(forms["image/png"]).replace("\n", "")
        return f'<img alt="what the cell draws" src="data:image/png;base64,{picture}">'
    if "text/html" in forms:
        return "<div>" + "".join(forms["text/html"]).replace("\n", " ") + "</div>"
    return "```text\n" + "".join(forms["text/plain"]).rstrip() + "\n```"

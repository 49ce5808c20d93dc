"""Last check of `make release-check`: version, changelog, citation and the files in dist must agree.

    python tools/release.py

Prints what is missing and exits with 1, or says what is ready.
"""

from __future__ import annotations

import pathlib
import re
import sys
import zipfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
LIBRARY, EXPRESS = "contdrop/kernels/native/_contdrop.so", "contdrop/kernels/native/_express.abi3.so"


def section(changelog: str, name: str) -> re.Match[str] | None:
    """Return the date, if any, and the text of a section of the changelog."""
    return re.search(rf"^## \[{re.escape(name)}\](?: - (\S+))?\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)


def problems(root: pathlib.Path) -> Iterator[str]:
    version = find(root / "src" / "contdrop" / "__init__.py", r'__version__ = "(.*)"')
    changelog = (root / "CHANGELOG.md").read_text()
    unreleased, released = section(changelog, "Unreleased"), section(changelog, version)
    if unreleased is None or unreleased[2].strip():
        yield "CHANGELOG.md: expected an empty part [Unreleased]; move what is in it to the version"
    if released is None or not released[1] or not released[2].strip():
        yield f"CHANGELOG.md: expected a part [{version}] - YYYY-MM-DD that says what is new"
    cited = [find(root / "CITATION.cff", rf"^{name}: (.*)$") for name in ("version", "date-released")]
    if released is not None and cited != [version, released[1]]:
        yield f"CITATION.cff: expected version {version} of {released[1]}, got {cited[0]} of {cited[1]}"
    files = sorted(path.name for path in (root / "dist").glob("*"))
    wheels = [name for name in files if re.fullmatch(rf"contdrop-{re.escape(version)}-py3-none-[\w.]+\.whl", name)]
    if f"contdrop-{version}.tar.gz" not in files or not wheels:
        yield f"dist: expected a source archive and a wheel of {version}, got {', '.join(files)}; run: make dist"
    if bad := [name for name in wheels if "-linux_" in name]:
        yield f"dist: expected wheels for many machines (manylinux, macosx), got {', '.join(bad)}"
    for name in wheels:
        if lacking := {LIBRARY, EXPRESS} - set(zipfile.ZipFile(root / "dist" / name).namelist()):
            yield f"dist/{name}: expected compiled kernels, got no {', '.join(sorted(lacking))}; install a compiler"
    if other := set(files) - {f"contdrop-{version}.tar.gz", *wheels}:
        yield f"dist: expected nothing but {version}, got {', '.join(sorted(other))}"


def find(path: pathlib.Path, pattern: str) -> str:
    found = re.search(pattern, path.read_text(), re.M)
    return found[1] if found else "nothing"


def main() -> int:
    found = list(problems(ROOT))
    print("\n".join(found) or "ready: " + ", ".join(sorted(path.name for path in (ROOT / "dist").glob("*"))))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

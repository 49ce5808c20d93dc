"""The code shown in the documentation runs as it stands."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _code(page):
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", [page for page in PAGES if _code(page)], ids=lambda page: page.name)
def test_code_runs(page, tmp_path, monkeypatch, request):
    if "from contdrop import lab" in _code(page):
        request.getfixturevalue("lab_packages")
    monkeypatch.chdir(tmp_path)  # studies write stores and pages
    exec(compile(_code(page), page.name, "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_table_of_relative_variances_is_true():
    import contdrop as cd

    rows = re.findall(r"^\| `(\w+\(.*?\))` \| ([\d.]+) \| keep = ([\d.]+) \|$", PAGES[0].read_text(), re.MULTILINE)
    assert len(rows) == 6
    for code, relative_variance, keep in rows:
        law = eval(code, vars(cd))
        assert f"{law.relative_variance:.3f}" == relative_variance
        assert f"{cd.Bernoulli.matching(law).keep:.3f}" == keep

"""The documentation: its code runs, its links lead somewhere, and every public name is in the reference."""

import importlib
import inspect
import pathlib
import re
import typing

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = sorted((DOCS / "reference").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *REFERENCE]

# Where public names are. A module's own are those that it defines, or imports under the same name for its users.
PUBLIC = [
    *["contdrop", "contdrop.functional", "contdrop.schedules", "contdrop.surgery", "contdrop.certificates"],
    *["contdrop.theory.static", "contdrop.theory.dynamic", "contdrop.theory.propagation", "contdrop.theory.bounds"],
    *["contdrop.lab", "contdrop.lab.stats"],
]
# Names without an underscore that other files of the package use, and nobody else.
INTERNAL = {
    *[f"contdrop.functional.{name}" for name in ("check_choice", "training_factor")],
    *["contdrop.theory.propagation.propagate", "contdrop.certificates.SCALES"],
    *[f"contdrop.surgery.{name}" for name in ("noise", "changed", "count_dropout_in", "Swap", "swap_dropout")],
}

# What a newcomer asks, as the page of questions has it. The front page links to it, so each answer is two clicks away.
QUESTIONS = [
    *["Which dropout should I use?", "What if my model calls F.dropout?", "Why is p 0.135?"],
    *["How many runs do I need?", "Is this Keras's GaussianDropout?", "Why not x * 2 * torch.rand_like(x)?"],
    *["How do I keep masks the same across ranks, or make them differ?", "Does it work with torch.compile?"],
    *["Does it slow training?", "Can I use it with Lightning, or with a Trainer?", 'What does "open" mean?'],
    *["Can I stop, resume, and go on with another machine?", "How do I cite it?", "How do I get uncertainty?"],
]


def _name(page):
    return page.relative_to(ROOT).as_posix()


def _code(page):
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", [page for page in PAGES if _code(page)], ids=_name)
def test_code_runs(page, tmp_path, monkeypatch, request):
    if re.search(r"^from contdrop(\.lab)? import (lab|stats)", _code(page), re.MULTILINE):
        request.getfixturevalue("lab_packages")
    monkeypatch.chdir(tmp_path)  # studies write stores and pages
    exec(compile(_code(page), page.name, "exec"), {})


def _files(page):
    """Code that is shown as a file of its own: its first line is its name."""
    return re.findall(r"^```python\n(# \w+\.py\n.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if _files(page)], ids=_name)
def test_a_file_that_is_shown_runs_by_itself(page, tmp_path, lab_packages):
    from contdrop import lab

    for text in _files(page):
        names = {"__name__": "my_study"}
        exec(compile(text, page.name, "exec"), names)
        lab.compare(names["study"], runs=1, epochs=1, store=tmp_path / "runs.db", workers=0, progress=False)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_files_that_pages_name_exist():
    """As code, by their path from the root or from the package; paths with placeholders are examples."""
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for name in re.findall(r"`((?:[\w.]+/)+(?:\w+\.(?:py|cpp|h))?|\w+\.py)`", text):
            places = (ROOT, ROOT / "src", ROOT / "src" / "contdrop", ROOT / "src/contdrop/kernels")
            assert any((place / name).exists() for place in places), f"{_name(page)}: {name}"


def test_lists_of_files_to_change_name_what_is_in_them():
    rows = re.findall(r"^\| (`.*?`) \| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(rows) >= 18
    for files, change in rows:
        paths = [
            ROOT / name for name in re.findall("`(.*?)`", files.replace("`native/", "`src/contdrop/kernels/native/"))
        ]
        text = "".join(file.read_text() for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path]))
        for name in re.findall(r"`(\w+)`", change):
            assert name in text, f"{name} is not in {files}"


def test_the_readme_table_of_relative_variances_is_true():
    import contdrop as cd

    rows = re.findall(r"^\| `(\w+\(.*?\))` \| ([\d.]+) \| keep = ([\d.]+) \|$", PAGES[0].read_text(), re.MULTILINE)
    assert len(rows) >= 3
    for code, relative_variance, keep in rows:
        law = eval(code, {name: getattr(cd, name) for name in cd.__all__})
        assert f"{law.relative_variance:.3f}" == relative_variance
        assert f"{cd.Bernoulli.matching(law).keep:.3f}" == keep


def _public(module):
    found = importlib.import_module(module)
    exported = re.findall(r"^ *from \S+ import (\w+) as \1$", inspect.getsource(found), re.MULTILINE)
    defined = [name for name, thing in vars(found).items() if getattr(thing, "__module__", None) == module]
    names = [name for name in [*exported, *defined] if not name.startswith("_")]
    things = {f"{module}.{name}": getattr(found, name) for name in names}
    return {
        name for name, thing in things.items() if not inspect.ismodule(thing) and typing.get_origin(thing) is None
    } - INTERNAL


def _entries():
    """Every name that the reference documents, with the text from it to the next entry."""
    pieces = [piece for page in REFERENCE for piece in re.split(r"^::: ", page.read_text(), flags=re.MULTILINE)[1:]]
    return {piece.split()[0]: piece for piece in pieces}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference_with_an_example(module, request):
    if module.startswith("contdrop.lab"):
        request.getfixturevalue("lab_packages")
    entries, names = _entries(), _public(module)
    assert names
    for name in sorted(names):
        assert name in entries, f"docs/reference has no entry ::: {name}"
        assert re.search(r"^```python\n.", entries[name], re.MULTILINE), f"{name} has no example in docs/reference"


def test_the_reference_names_every_command(lab_packages):
    import typer.main

    from contdrop.cli import app

    page = (DOCS / "reference" / "command-line.md").read_text()
    for command in typer.main.get_command(app.app).commands:
        assert f"`contdrop {command}" in page, command


def test_questions_of_newcomers_are_answered_within_two_clicks():
    assert "(questions.md)" in (DOCS / "index.md").read_text()
    answers = dict(
        re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (DOCS / "questions.md").read_text(), re.DOTALL | re.MULTILINE)
    )
    for question in QUESTIONS:
        assert "](" in answers[question], f"{question} has no link to more"
    assert len(answers) >= len(QUESTIONS) >= 10


def test_the_readme_is_short():
    assert len(PAGES[0].read_text().splitlines()) <= 150


def test_verdicts_in_the_walk_through_the_paper_are_those_of_the_ledger():
    ledger = dict(
        re.findall(r"^\| ([TE]\d+) \|.*\| \*\*([a-z ]+)\*\* \|", (DOCS / "claims.md").read_text(), re.MULTILINE)
    )
    page = " ".join((DOCS / "paper.md").read_text().split())
    named = re.findall(r"\b([TE]\d+) \((holds|does not hold|open|not testable here)\)", page)
    assert len(named) >= 16
    assert named == [(claim, ledger[claim]) for claim, _ in named]

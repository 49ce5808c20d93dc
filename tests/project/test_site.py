"""The documentation as a site: built strictly, complete, and read in a real browser, from a disk and from a server."""

import functools
import http.server
import importlib.util
import pathlib
import re
import subprocess
import sys
import threading
import time

import pytest

import browser

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("mkdocstrings"), reason='needs mkdocs: pip install "contdrop[docs]"'
)


def build(source, target):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A broken link or anchor, a page in no menu, or a name that does not exist is a warning, and so an error."""
    target = tmp_path_factory.mktemp("site")
    result = build(ROOT, target)
    assert result.returncode == 0, result.stdout + result.stderr
    return target


def test_pages_of_the_repository_have_a_place_in_it(site):
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    expected = {"index.html", "paper.html", "reference/layers.html", "CONTRIBUTING.html", "results/PROTOCOL.html"}
    assert expected | {"examples/tabular_regression.py.html"} <= pages
    assert 'href="glossary.html"' in (site / "CONTRIBUTING.html").read_text()


def test_notebooks_are_pages_with_what_their_cells_showed(site):
    page = (site / "examples" / "first_study.ipynb.html").read_text()
    assert "<table>" in page
    assert "No dropout" in page
    assert 'src="data:image/png;base64,' in page
    assert "PosixPath" in page
    assert 'href="examples/first_study.ipynb.html"' in (site / "gallery.html").read_text()


def test_the_reference_shows_signatures_with_types(site):
    layers = (site / "reference" / "layers.html").read_text()
    assert 'id="contdrop.GaussianDropout"' in layers
    assert re.search(r"sigma.{0,200}float.{0,200}0\.3", re.sub(r"<[^>]+>", "", layers), re.DOTALL)
    assert ":class:" not in layers


def test_a_broken_link_fails(tmp_path):
    for name in ("docs", "src", "tools", "examples", "results", "benchmarks", "CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").unlink()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Broken\n\n[nowhere](nowhere.md)\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings)
    result = build(tmp_path, tmp_path / "out")
    assert result.returncode != 0
    assert "nowhere.md" in result.stdout + result.stderr


@pytest.mark.skipif(browser.EXECUTABLE is None, reason=browser.MISSING)
def test_the_site_fits_a_desk_and_a_phone_and_asks_for_nothing(site, tmp_path):
    with browser.Browser(tmp_path) as chromium:
        for width, dark in ((1280, False), (390, True)):
            for name in ("index.html", "architecture.html", "reference/layers.html"):
                tab = chromium.page(width, 900, dark=dark)
                tab.open((site / name).as_uri())
                assert tab.run("document.scrollingElement.scrollWidth <= innerWidth"), f"{name} is too wide at {width}"
                assert all(asked.startswith(("file:", "data:", "blob:")) for asked in tab.requests)
                scheme = tab.run("document.body.getAttribute('data-md-color-scheme')")
                assert scheme == ("slate" if dark else "default")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.skipif(browser.EXECUTABLE is None, reason=browser.MISSING)
def test_search_finds_a_name(site, tmp_path):
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, browser.Browser(tmp_path) as chromium:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab = chromium.page(1280, 900)
        tab.open(f"http://127.0.0.1:{server.server_port}/index.html?q=GaussianDropout")
        end = time.monotonic() + 60
        while not (found := tab.run("document.querySelector('.md-search-result__item')?.textContent")):
            assert time.monotonic() < end, "the search found nothing within a minute"
            time.sleep(0.2)
        server.shutdown()
    assert "GaussianDropout" in found

"""The page in a real browser: opened from disk, clicked on, on a phone and on a desk, by day and by night."""

import re

import pytest

import browser
from contdrop.lab.extensions import Extension
from contdrop.lab.report import page
from stores import ALL_METHODS, make_store

pytestmark = pytest.mark.skipif(browser.EXECUTABLE is None, reason=browser.MISSING)

EVIL = "<script>alert(1)</script>"
LONGEST = "Gaussian is better than every other method, by 11.00 to 13.00 points, beyond chance."  # 84 characters
LONG = "a-method-with-a-very-long-name-that-nobody-would-choose-but-somebody-will"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Two experiments, one of them with names that are hard on a page."""
    directory = tmp_path_factory.mktemp("report")
    store = make_store(directory / "runs.db", methods=ALL_METHODS, runs=6, epochs=3, images=300, failed={("none", 1)})
    make_store(
        store, methods=[EVIL, "gaussian", "bernoulli", LONG], runs=6, epochs=3, images=300, experiment=f"{EVIL}{LONG}",
        title=f"{EVIL} {LONG}", failed={(LONG, 1)},
    )  # fmt: skip
    real = page.figures.figures
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page.drawing, "FORMATS", ("svg",))
        patch.setattr(page.figures, "figures", lambda *arguments: real(*arguments)[::3])
        return page.write(store, directory / "out").index.as_uri()


@pytest.fixture
def tab(chromium, address):
    def tab(width=1400, height=900, *, dark=False):
        opened = chromium.page(width, height, dark=dark)
        opened.open(address)
        return opened

    return tab


def fits(tab):
    return tab.run("document.scrollingElement.scrollWidth <= innerWidth")


def test_opens_from_disk_and_asks_for_nothing(tab, address):
    opened = tab()
    assert opened.run("document.querySelector('.headline').textContent").startswith("Gaussian is ")
    assert opened.run("document.getElementById('theme').hidden") is False  # the script ran
    assert opened.problems == []
    asked = [request for request in opened.requests if not request.startswith("data:image/png;base64,")]
    assert asked == [address]


def test_the_policy_is_in_force(tab):
    """A script that got in all the same would not run, nor could it send anything anywhere."""
    opened = tab()
    opened.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">');"
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s);"
        "fetch('https://example.org/').catch(() => { window.refused = 1; })"
    )
    assert opened.run("[window.hacked === undefined, window.refused]") == [True, 1]
    assert len(opened.problems) >= 3
    assert all("Content Security Policy" in problem for problem in opened.problems)


def test_dangerous_names_are_text(tab, chromium):
    opened = tab()
    text = opened.run("document.body.innerText")
    assert f"{EVIL}{LONG}" in text
    assert f"{EVIL} {LONG}" in text
    assert opened.run("document.scripts.length") == 1
    assert not [event for event in chromium.events if event.get("method") == "Page.javascriptDialogOpening"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [320, 360, 768, 1400])
def test_layout_holds(tab, width, dark, tmp_path):
    opened = tab(width, dark=dark)
    assert opened.run("innerWidth") == width
    assert fits(opened)
    # Not because something hides what sticks out: every box but those that scroll ends within the window.
    assert (
        opened.run(
            "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, svg, .unseen') && "
            "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 120))"
        )
        == []
    )
    assert opened.run("[...document.querySelectorAll('.drawing')].every(e => e.getBoundingClientRect().width > 200)")
    picture = tmp_path / "page.png"
    opened.screenshot(picture)
    assert picture.stat().st_size > 10_000


def test_the_verdict_comes_first(tab):
    for width in (360, 1400):
        assert tab(width).run("document.querySelector('.headline').getBoundingClientRect().top < innerHeight / 2")


def test_names_in_the_forest_are_not_torn_on_a_phone(tab):
    """Each stands on one line, however long the figures beside it are."""
    opened = tab(360)
    opened.run(
        "document.querySelectorAll('.forest tbody tr').forEach(e => { e.cells[0].textContent = "
        "'Bernoulli of equal strength'; e.cells[2].textContent = '+0.000201 [-0.000228, +0.000481]'; })"
    )
    heights = opened.run("[...document.querySelectorAll('.forest tbody th')].map(e => e.getClientRects()[0].height)")
    assert heights
    assert max(heights) < 30
    assert fits(opened)


def test_a_headline_has_at_most_two_lines_and_tables_say_that_they_scroll(tab):
    lines = """[...document.querySelectorAll('.headline')].map(e =>
        Math.round(e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight)))"""
    hinted = """[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).map(e =>
        e.previousElementSibling.className == 'hint' && e.previousElementSibling.getBoundingClientRect().height > 0)"""
    fitting = """[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth <= e.clientWidth).map(e =>
        e.previousElementSibling.getBoundingClientRect().height)"""
    for width in (360, 390, 1400):
        opened = tab(width)
        assert max(opened.run(lines)) <= 2, opened.run("document.querySelector('.headline').textContent")
        opened.run(f"document.querySelectorAll('.headline').forEach(e => {{ e.textContent = {LONGEST!r}; }})")
        assert max(opened.run(lines)) <= 2
        assert not any(opened.run(fitting))
        if width < 400:
            found = opened.run(hinted)
            assert found
            assert all(found)


BRIGHTNESS = """(name => { const probe = document.querySelector(name); const style = getComputedStyle(probe);
    const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(v => { v /= 255;
        return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
    return [light(style.color), light(getComputedStyle(document.body).backgroundColor)]; })"""


def test_light_dark_and_the_switch(tab):
    for dark in (False, True):
        opened = tab(dark=dark)
        ink, paper = opened.run(f"{BRIGHTNESS}('body')")
        assert (paper < 0.1) == dark
        for element in ("body", ".faint", ".chip", ".mark", ".note", "figcaption"):
            ink, paper = opened.run(f"{BRIGHTNESS}({element!r})")
            assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, element
        fill = "getComputedStyle(document.querySelector('.drawing text')).fill"
        before = opened.run(fill)
        opened.click("#theme")
        assert (opened.run(f"{BRIGHTNESS}('body')")[1] < 0.1) != dark
        assert opened.run(fill) != before  # figures follow
        opened.run("localStorage.clear()")
        assert opened.problems == []


def column(tab, place):
    return tab.run(
        "Array.from(document.querySelector('table.sortable').tBodies[0].rows, "
        f"row => row.cells[{place}].dataset.value ?? row.cells[{place}].textContent)"
    )


def test_tables_sort_by_value(tab):
    opened = tab()
    heading = "table.sortable thead th:nth-child({}) button"
    state = "Array.from(document.querySelector('table.sortable thead tr').cells, c => c.getAttribute('aria-sort'))"
    before = [float(value) for value in column(opened, 1)]
    assert before != sorted(before)
    opened.click(heading.format(2))
    assert [float(value) for value in column(opened, 1)] == sorted(before)
    assert opened.run(state)[:3] == ["none", "ascending", "none"]
    opened.click(heading.format(2))
    assert [float(value) for value in column(opened, 1)] == sorted(before, reverse=True)
    assert opened.run(state)[:2] == ["none", "descending"]
    names = column(opened, 0)
    opened.run(f"document.querySelector('{heading.format(1)}').focus()")
    opened.press("Enter", 13)
    assert column(opened, 0) == sorted(names, key=str.lower)
    assert opened.run(state)[:2] == ["ascending", "none"]
    assert opened.problems == []


def test_numbers_sort_as_numbers_and_gaps_come_last(tab):
    opened = tab()
    opened.run(
        "for (const [i, v] of ['10', '9.1e-7', undefined, '-2', 'nan', '1e-3', 'inf'].entries()) { const cell = "
        "document.querySelector('table.sortable').tBodies[0].rows[i].cells[1]; "
        "if (v === undefined) delete cell.dataset.value; else cell.dataset.value = v; "
        "cell.textContent = v ?? 'gap'; } document.querySelector('table.sortable').tBodies[0].rows[7].remove()"
    )
    opened.click("table.sortable thead th:nth-child(2) button")
    assert column(opened, 1) == ["-2", "9.1e-7", "1e-3", "10", "inf", "gap", "nan"]
    opened.click("table.sortable thead th:nth-child(2) button")
    assert column(opened, 1) == ["inf", "10", "1e-3", "9.1e-7", "-2", "gap", "nan"]


def test_figures_enlarge(tab):
    opened = tab()
    is_open = "document.getElementById('viewer').open"
    width = opened.run("document.querySelector('.drawing').getBoundingClientRect().width")
    opened.click(".enlarge")
    assert opened.run(is_open)
    assert opened.run("document.querySelector('#viewer .drawing').getBoundingClientRect().width") > width
    title = opened.run("document.querySelector('figcaption strong').textContent")
    assert opened.run("document.getElementById('viewer-title').textContent") == title
    assert opened.run("document.activeElement.id") == "viewer-close"
    opened.press("Escape", 27)
    assert not opened.run(is_open)
    assert opened.run("document.activeElement.className") == "enlarge"  # the focus is back where it was
    opened.press("Enter", 13)  # and the keyboard opens it as well
    assert opened.run(is_open)
    opened.click("#viewer-close")
    assert not opened.run(is_open)
    assert opened.problems == []


def test_everything_has_a_name_for_those_who_listen(tab):
    opened = tab()
    nameless = opened.run(
        "[...document.querySelectorAll('button, a, [role=img], [role=region], nav')].filter(e => "
        "!(e.getAttribute('aria-label') || e.textContent).trim()).length"
    )
    assert nameless == 0
    levels = [
        int(level[1])
        for level in opened.run("[...document.querySelectorAll('main :is(h1,h2,h3,h4)')].map(e => e.tagName)")
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1


def test_prints(tab):
    """On white, and nothing is cut off at the right: a sheet of A4 has 182 mm, or 688 pixels, between its margins."""
    opened = tab(dark=True)
    content = opened.pdf()
    assert content.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 30
    opened.call("Emulation.setEmulatedMedia", media="print", features=[])
    opened.resize(688, 900)
    cut = (
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('svg, .unseen, .skip') && "
        "(e.getBoundingClientRect().right > innerWidth + 1 || (e.scrollWidth > e.clientWidth + 1 && "
        "getComputedStyle(e).overflowX != 'visible'))).map(e => e.outerHTML.slice(0, 120))"
    )
    assert opened.run(cut) == []
    assert opened.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.run("getComputedStyle(document.querySelector('.drawing text')).fill") == "rgb(31, 35, 40)"
    shown = "[...document.querySelectorAll('#theme, .enlarge, .files, .contents')].filter(e => e.offsetHeight).length"
    assert opened.run(shown) == 0


def test_a_live_page_reloads_but_not_under_an_enlarged_figure(chromium, tmp_path):
    store = make_store(tmp_path / "runs.db", runs=2, epochs=1, images=50)
    with pytest.MonkeyPatch.context() as patch:
        real = page.figures.figures
        patch.setattr(page.figures, "figures", lambda *arguments: real(*arguments)[:1])
        patch.setattr(page, "extension", lambda: Extension())
        patch.setattr(page, "_FAST_FORMATS", ("svg",))
        index = page.write(store, tmp_path / "out", refresh=1).index
    opened = chromium.page()
    opened.open(index.as_uri())
    opened.click(".enlarge")
    opened.run("new Promise(done => setTimeout(done, 1500))")
    assert not [event for event in chromium.events if event.get("method") == "Page.loadEventFired"]
    opened.press("Escape", 27)
    chromium.wait_for("Page.loadEventFired", opened._session)
    opened.call("Page.navigate", url="about:blank")

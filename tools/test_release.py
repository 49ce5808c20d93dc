"""What `make release-check` finds missing."""

import zipfile

import pytest

import scripts

CHANGELOG = "## [Unreleased]\n\n## [1.2.0] - 2026-01-02\n\n- News.\n\n## [1.1.0] - 2025-01-02\n"
NATIVE = ("_contdrop.so", "_express.abi3.so")
WHEEL = "contdrop-1.2.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"


@pytest.fixture(scope="module")
def release():
    return scripts.load("tools/release.py")


@pytest.fixture
def project(tmp_path):
    (tmp_path / "src" / "contdrop").mkdir(parents=True)
    (tmp_path / "dist").mkdir()
    (tmp_path / "src" / "contdrop" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.0\ndate-released: 2026-01-02\n")
    (tmp_path / "dist" / "contdrop-1.2.0.tar.gz").touch()
    make_wheel(tmp_path / "dist" / WHEEL)
    return tmp_path


def make_wheel(path, names=NATIVE):
    with zipfile.ZipFile(path, "w") as wheel:
        for name in names:
            wheel.writestr(f"contdrop/kernels/native/{name}", "")


def test_a_release_that_agrees_is_ready(release, project):
    assert list(release.problems(project)) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "found"),
    [
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n- More.\n", "expected an empty part [Unreleased]"),
        ("CHANGELOG.md", "[1.2.0] - 2026-01-02", "[1.2.0]", "expected a part [1.2.0] - YYYY-MM-DD"),
        ("CHANGELOG.md", "- News.", "", "expected a part [1.2.0] - YYYY-MM-DD"),
        ("CITATION.cff", "\nversion: 1.2.0", "\nversion: 1.1.0", "got 1.1.0 of 2026-01-02"),
        ("CITATION.cff", "01-02", "01-03", "expected version 1.2.0 of 2026-01-02, got 1.2.0 of 2026-01-03"),
        ("src/contdrop/__init__.py", "1.2.0", "1.3.0", "expected a source archive and a wheel of 1.3.0"),
    ],
)
def test_what_does_not_agree_is_named(release, project, file, before, after, found):
    path = project / file
    path.write_text(path.read_text().replace(before, after, 1))
    assert found in "\n".join(release.problems(project))


def test_wheels_of_this_machine_alone_and_old_files_are_named(release, project):
    (project / "dist" / WHEEL).rename(project / "dist" / "contdrop-1.2.0-py3-none-linux_x86_64.whl")
    (project / "dist" / "contdrop-1.1.0.tar.gz").touch()
    found = "\n".join(release.problems(project))
    assert "(manylinux, macosx), got contdrop-1.2.0-py3-none-linux_x86_64.whl" in found
    assert "expected nothing but 1.2.0, got contdrop-1.1.0.tar.gz" in found


def test_a_wheel_without_its_kernels_is_named(release, project):
    make_wheel(project / "dist" / WHEEL, NATIVE[:1])
    (found,) = release.problems(project)
    assert f"dist/{WHEEL}: expected compiled kernels, got no contdrop/kernels/native/_express.abi3.so" in found

"""Preprocessing against naive implementations, and the cache of what takes minutes."""

import os

import numpy as np
import pytest

from contdrop.errors import UserError
from contdrop.replication import preprocessing

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (40, 3, 4, 4)).astype(np.uint8)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTDROP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_global_contrast_one_image_after_another():
    found = preprocessing.global_contrast(IMAGES, scale=55.0)
    assert (found.dtype, found.shape) == (np.float32, IMAGES.shape)
    for image, ours in zip(IMAGES, found):
        centred = [float(value) - float(image.mean()) for value in image.ravel()]
        length = sum(value**2 for value in centred) ** 0.5
        np.testing.assert_allclose(ours.ravel(), [55 * value / length for value in centred], atol=1e-5)


def test_global_contrast_of_one_colour_is_zero_and_leaves_its_input_alone():
    plain = np.full((2, 3, 4, 4), 7, np.uint8)
    assert not preprocessing.global_contrast(plain).any()
    floats = IMAGES.astype(np.float32)
    preprocessing.global_contrast(floats)
    np.testing.assert_array_equal(floats, IMAGES)


def naive_whitening(images, eps):
    """By the square root of a matrix and a linear system, without the eigenvectors of the covariance."""
    linalg = pytest.importorskip("scipy.linalg")
    flat = images.reshape(len(images), -1).astype(np.float64)
    covariance = np.cov(flat.T, bias=True)
    root = linalg.sqrtm(covariance + eps * np.eye(len(covariance))).real
    return np.linalg.solve(root, (flat - flat.mean(0)).T).T.reshape(images.shape)


@pytest.mark.parametrize("eps", [0.1, 0.01])
def test_whitening_against_the_root_of_the_covariance(eps, monkeypatch):
    monkeypatch.setattr(preprocessing, "_CHUNK", 7)
    images = preprocessing.global_contrast(IMAGES, scale=5.0)
    found = preprocessing.fit_whitening(images, eps)(images)
    np.testing.assert_allclose(found, naive_whitening(images, eps), atol=1e-5)


@pytest.mark.parametrize("eps", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("count", [400, 30])  # fewer images than values: some directions do not vary at all
def test_covariance_of_whitened_images(eps, count):
    images = RANDOM.normal(size=(count, 2, 5, 5)) * np.linspace(0.1, 3, 50).reshape(2, 5, 5)
    found = preprocessing.fit_whitening(images, eps)(images).reshape(count, -1).astype(np.float64)
    variances, directions = np.linalg.eigh(np.cov(images.reshape(count, -1).T, bias=True))
    variances[variances < 1e-10] = 0
    expected = np.divide(variances, variances + eps, out=np.zeros(50), where=variances > 0)
    in_basis = directions.T @ np.cov(found.T, bias=True) @ directions
    np.testing.assert_allclose(in_basis, np.diag(expected), atol=2e-5)


def test_whitening_is_fitted_on_the_training_images_alone():
    fitted = preprocessing.fit_whitening(IMAGES[:30], 1.0)
    np.testing.assert_allclose(fitted(IMAGES[30:]), fitted(IMAGES)[30:], rtol=1e-4, atol=1e-4)


def test_fitted_once_and_kept(cache, monkeypatch):
    first = preprocessing.fitted_whitening(IMAGES, 0.5)
    assert [name[:4] for name in os.listdir(cache)] == ["zca-"]
    with monkeypatch.context() as patch:
        patch.setattr(preprocessing, "fit_whitening", None)  # not called again
        again = preprocessing.fitted_whitening(IMAGES.copy(), 0.5)
    np.testing.assert_array_equal(first.matrix, again.matrix)
    preprocessing.fitted_whitening(IMAGES, 0.6)
    preprocessing.fitted_whitening(IMAGES[1:], 0.5)
    assert len(os.listdir(cache)) == 3


@pytest.mark.parametrize("damage", [lambda c: b"", lambda c: c[:-30], lambda c: c[:300] + b"\0\1\2" + c[303:]])
def test_a_damaged_file_of_the_cache_is_made_again(cache, damage):
    arrays = {"a": RANDOM.normal(size=100)}
    preprocessing.cached("x", (1,), lambda: arrays)
    (path,) = cache.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    np.testing.assert_array_equal(preprocessing.cached("x", (1,), lambda: arrays)["a"], arrays["a"])
    np.testing.assert_array_equal(preprocessing.cached("x", (1,), dict)["a"], arrays["a"])  # whole again


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONTDROP_CACHE", str(tmp_path / "file"))
    assert preprocessing.cached("x", (1,), lambda: {"a": np.ones(1)})["a"] == 1


def test_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("CONTDROP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert str(preprocessing.cache_directory()) == "/cache/contdrop/computed"
    monkeypatch.setenv("CONTDROP_CACHE", "~nobodyhere/x")
    with pytest.raises(
        UserError, match=r"^cannot tell where to keep what is computed \(.*\); set CONTDROP_CACHE to a "
    ):
        preprocessing.cache_directory()


def test_arrays_are_kept_by_versions_of_numpy_whose_savez_takes_arrays_only(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTDROP_CACHE", str(tmp_path))

    def savez(file, *arrays, plain=np.savez, **named):
        assert not arrays
        assert set(named) == {"a"}
        plain(file, **named)

    monkeypatch.setattr(np, "savez", savez)
    preprocessing.cached("x", (1,), lambda: {"a": np.ones(3)})
    assert set(preprocessing.cached("x", (1,), dict)) == {"a"}

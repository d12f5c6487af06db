"""Objects on a web server: ranges with and without the server's help, one object's listing."""

import pytest

from tests.fakes import Reply, Request, StubServer
from tools_utilities.errors import (
    AccessError,
    ObjectNotFoundError,
    ObjectReplacedError,
    StoreError,
    UsageError,
)
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store

DATA = b"0123456789" * 100


class Site:
    """A small site; `ranges` says whether it knows them."""

    def __init__(self) -> None:
        self.files = {"/data/a b.jsonl": DATA, "/data/empty.jsonl": b"", "/data/": b"<html>index"}
        self.ranges = True
        self.etag: str | None = '"v1"'
        self.redirect_to: str | None = None

    def answer(self, request: Request) -> Reply:
        if self.redirect_to:
            return Reply(302, {"location": self.redirect_to})
        data = self.files.get(request.path.replace("%20", " "))
        if data is None:
            return Reply(404)
        kind = "text/html" if data.startswith(b"<html") else "application/octet-stream"
        headers = {"content-type": kind, "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if self.etag:
            headers["etag"] = self.etag
        spoken = request.headers.get("range")
        if not spoken or not self.ranges:
            return Reply(200, headers, data)
        start, _, last = spoken.removeprefix("bytes=").partition("-")
        stop = min(int(last) + 1, len(data)) if last else len(data)
        if int(start) >= len(data):
            return Reply(416)
        headers["content-range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return Reply(206, headers, data[int(start) : stop])


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def server(site):
    with StubServer(site.answer) as stub:
        yield stub


def open_at(server: StubServer, path: str = "/data") -> ObjectStore:
    return open_store(StoreSpec(uri=server.url + path))


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(
    ("start", "end"),
    [(0, None), (3, None), (2, 5), (990, 2000), (1000, None), (1001, 1002), (4, 4)],
)
def test_ranges_are_right_whether_or_not_the_server_knows_them(site, server, ranges, start, end):
    site.ranges = ranges
    body = open_at(server).get("a b.jsonl", start=start, end=end)
    assert b"".join(body) == DATA[start:end]
    assert body.info.size_bytes == 1000


def test_head_tells_size_and_version(server):
    info = open_at(server).head("a b.jsonl")
    assert (info.size_bytes, info.etag) == (1000, "v1")


@pytest.mark.parametrize("span", [(0, None), (0, 5)])
def test_an_empty_file_is_an_empty_body(server, span):
    assert list(open_at(server).get("empty.jsonl", start=span[0], end=span[1])) == []


def test_a_replaced_file_is_told(site, server):
    store = open_at(server)
    etag = store.head("a b.jsonl").etag
    site.etag = '"v2"'
    with pytest.raises(ObjectReplacedError):
        store.get("a b.jsonl", if_etag=etag)


def test_without_etag_the_last_change_and_size_are_the_version(site, server):
    site.etag = None
    store = open_at(server)
    etag = store.head("a b.jsonl").etag
    assert etag
    site.files["/data/a b.jsonl"] = DATA + b"more"
    with pytest.raises(ObjectReplacedError):
        store.get("a b.jsonl", if_etag=etag)


def test_one_files_url_lists_that_file(server):
    store = open_at(server, "/data/a%20b.jsonl")
    [info] = store.list("")
    assert (info.key, info.size_bytes) == ("a b.jsonl", 1000)
    assert b"".join(store.get(info.key)) == DATA
    [info] = open_at(server, "/data").list("a b.jsonl")
    assert info.key == "a b.jsonl"
    assert list(store.list("", start_after="a b.jsonl")) == []


@pytest.mark.parametrize("prefix", ["", "sub/", "nothing"])
def test_a_folder_cannot_be_listed_and_says_so(server, prefix):
    store = open_at(server)
    with pytest.raises(UsageError, match="cannot be listed"):
        list(store.list(prefix))
    with pytest.raises(UsageError, match="cannot be listed"):
        list(store.list_folder(prefix))


def test_a_query_goes_with_its_file_and_is_never_shown(server):
    store = open_at(server, "/data/a%20b.jsonl?X-Signature=hush")
    assert b"".join(store.get("a b.jsonl")) == DATA
    assert "X-Signature=hush" in server.requests[-1].target
    assert "hush" not in store.endpoint_id
    with pytest.raises(ObjectNotFoundError) as caught:
        store.get("other")
    assert "hush" not in str(caught.value)
    assert "hush" not in server.requests[-1].target


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, ObjectNotFoundError), (403, AccessError), (500, StoreError), (429, StoreError)],
)
def test_refusals(server, status, kind):
    server.answer = lambda _: Reply(status)
    with pytest.raises(kind) as caught:
        open_at(server).get("x")
    assert caught.value.detail["status"] == status
    assert bool(caught.value.detail.get("transient")) == (kind is StoreError)
    assert len(server.requests) == 1


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_body_that_breaks_tells_how_much_came(server, how):
    server.answer = lambda _: Reply(200, {}, bytes(1 << 20), send_bytes=600_000, then=how)
    received = 0
    with pytest.raises(StoreError) as caught:
        for piece in open_at(server).get("x"):
            received += len(piece)
    assert caught.value.detail["received_bytes"] == received
    assert caught.value.detail["transient"] is True


def test_redirects_are_followed(site, server):
    with StubServer(lambda _: Reply(200, {}, b"there")) as other:
        site.redirect_to = other.url + "/x"
        assert b"".join(open_at(server).get("k")) == b"there"


def test_redirects_without_end_are_an_error(site, server):
    site.redirect_to = server.url + "/again"
    with pytest.raises(StoreError):
        open_at(server).get("k")


def test_nothing_can_be_written(server):
    store = open_at(server)
    assert not store.writable
    for act in (
        lambda: store.put("k", b""),
        lambda: store.put_if_absent("k", b""),
        lambda: store.put_if_match("k", b"", "1"),
        lambda: store.delete("k"),
    ):
        with pytest.raises(UsageError, match="read-only"):
            act()
    assert server.requests == []


def test_nobody_listens():
    with StubServer(lambda _: Reply()) as gone:
        url = gone.url
    with pytest.raises(StoreError) as caught:
        open_store(StoreSpec(uri=url)).get("k")
    assert caught.value.detail["transient"] is True


def test_a_url_with_a_password_is_refused():
    with pytest.raises(UsageError) as caught:
        open_store(StoreSpec(uri="https://me:hunter2@example.invalid/x"))
    assert "hunter2" not in str(caught.value)

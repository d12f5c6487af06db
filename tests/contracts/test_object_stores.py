"""What every object store must do, over every store there is a server (or a folder) for."""

import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tools_utilities.errors import (
    ConditionFailedError,
    DataNotFoundError,
    ObjectNotFoundError,
    ObjectReplacedError,
    UsageError,
)
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store, store_schemes
from tools_utilities.object_stores import _s3_listing

pytestmark = pytest.mark.usefixtures("aws_environment")

KINDS = ("memory", "file", "moto", "weed")


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return str(request.param)


@pytest.fixture
def store(kind, request, tmp_path) -> ObjectStore:
    """Return an empty store of each kind."""
    return make_store(kind, request, tmp_path)


def make_store(kind, request, tmp_path) -> ObjectStore:
    if kind == "memory":
        return open_store(StoreSpec(uri=f"memory://{uuid.uuid4()}"))
    if kind == "file":
        folder = tmp_path / "bucket"
        folder.mkdir()
        return open_store(StoreSpec(uri=f"file://{folder}"))
    endpoint = request.getfixturevalue(f"{kind}_endpoint")
    bucket = request.getfixturevalue("make_bucket")(endpoint)
    return open_store(StoreSpec(uri=f"s3://{bucket}", endpoint_url=endpoint))


def read(store: ObjectStore, key: str, **options) -> bytes:
    return b"".join(store.get(key, **options))


def keys(store: ObjectStore, prefix: str = "", **options) -> list[str]:
    return [info.key for info in store.list(prefix, **options)]


def test_every_scheme_is_a_plug_in():
    assert {"s3", "r2", "gs", "az", "file", "memory", "http", "https"} <= set(store_schemes())


def test_unknown_scheme_names_the_known_ones():
    with pytest.raises(UsageError) as caught:
        open_store(StoreSpec(uri="ftp://somewhere"))
    assert "ftp" in str(caught.value)
    assert "s3" in caught.value.hint


# Reading and writing.


def test_what_is_put_is_got_whole(store):
    data = random.Random(7).randbytes(3_000_001)
    info = store.put("a/b", data)
    body = store.get("a/b")
    assert b"".join(body) == data
    assert info.size_bytes == body.info.size_bytes == len(data)
    assert info.etag == body.info.etag == store.head("a/b").etag
    assert info.etag is not None
    assert '"' not in info.etag


def test_put_replaces_and_changes_the_etag(store):
    first = store.put("k", b"one")
    second = store.put("k", b"two")
    assert read(store, "k") == b"two"
    assert first.etag != second.etag


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        *[(0, None, b"0123456789"), (3, None, b"3456789"), (2, 5, b"234"), (0, 1, b"0")],
        *[(8, 99, b"89"), (10, None, b""), (99, None, b""), (10, 12, b""), (4, 4, b"")],
    ],
)
def test_ranges_are_half_open_and_cut_at_the_end(store, start, end, expected):
    store.put("k", b"0123456789")
    for _ in range(2):  # S3 answers the first get through boto3, the second through obstore
        body = store.get("k", start=start, end=end)
        assert b"".join(body) == expected
        assert body.info.size_bytes == 10
        assert body.info.key == "k"


@pytest.mark.parametrize("span", [(0, None), (0, 1), (0, 100), (5, None)])
def test_an_empty_object_is_an_empty_body(store, span):
    store.put("empty", b"")
    for _ in range(2):
        body = store.get("empty", start=span[0], end=span[1])
        assert list(body) == []
        assert body.info.size_bytes == 0


def test_a_closed_body_may_be_closed_again(store):
    store.put("k", b"x" * 1000)
    for _ in range(2):
        body = store.get("k")
        body.close()
        body.close()


def test_get_with_the_listed_etag_refuses_a_replaced_object(store):
    store.put("k", b"one")
    [listed] = store.list("k")
    assert read(store, "k", if_etag=listed.etag) == b"one"
    store.put("k", b"two")
    with pytest.raises(ObjectReplacedError) as caught:
        store.get("k", if_etag=listed.etag)
    assert caught.value.detail["key"] == "k"
    with pytest.raises(ObjectReplacedError):
        store.get("k", start=1, end=2, if_etag=listed.etag)


def test_missing_objects_are_not_found_by_name(store):
    store.put("there", b"")
    for ask in (store.get, store.head):
        with pytest.raises(ObjectNotFoundError) as caught:
            ask("gone/x")
        assert "gone/x" in str(caught.value)
        assert caught.value.detail["status"] == 404


def test_delete_is_idempotent(store):
    store.put("k", b"1")
    store.delete("k")
    store.delete("k")
    assert keys(store) == []


# Not memory: a memory store comes to be by its name.
@pytest.mark.parametrize("kind", ["file", "moto", "weed"], indirect=False)
def test_a_missing_bucket_is_named(kind, request, tmp_path):
    if kind == "file":
        name = str(tmp_path / "nowhere")
        spec = StoreSpec(uri=f"file://{name}")
    else:
        name = "no-such-bucket-here"
        endpoint = request.getfixturevalue(f"{kind}_endpoint")
        spec = StoreSpec(uri=f"s3://{name}", endpoint_url=endpoint)
    for ask in (
        lambda one: list(one.list("")),
        lambda one: one.get("k"),
        lambda one: one.head("k"),
    ):
        with pytest.raises(DataNotFoundError) as caught:
            ask(open_store(spec))
        assert name in str(caught.value)


# Conditions.


def test_create_refuses_to_overwrite(store):
    store.put_if_absent("k", b"first")
    with pytest.raises(ConditionFailedError):
        store.put_if_absent("k", b"second")
    assert read(store, "k") == b"first"


def test_a_stale_etag_is_refused(store):
    first = store.put_if_absent("k", b"one")
    second = store.put_if_match("k", b"two", first.etag)
    with pytest.raises(ConditionFailedError):
        store.put_if_match("k", b"three", first.etag)
    store.put_if_match("k", b"four", second.etag)
    assert read(store, "k") == b"four"


def test_a_missing_object_matches_no_etag(store):
    etag = store.put("k", b"one").etag
    store.delete("k")
    with pytest.raises(ConditionFailedError):
        store.put_if_match("k", b"two", etag)
    assert keys(store) == []


@pytest.mark.parametrize("kind", ["memory", "file", "weed"], indirect=False)
def test_of_16_creators_one_wins(kind, request, tmp_path):
    # Not on moto: its conditional create is not atomic.
    store = make_store(kind, request, tmp_path)
    store.put("warm-up", b"")

    def create(number: int) -> int | None:
        try:
            store.put_if_absent("claim", b"%d" % number)
        except ConditionFailedError:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        winners = [number for number in pool.map(create, range(16)) if number is not None]
    assert len(winners) == 1
    assert read(store, "claim") == b"%d" % winners[0]


@pytest.mark.parametrize("kind", ["memory", "file", "weed"], indirect=False)
def test_no_increment_is_lost_between_8_threads(kind, request, tmp_path):
    store = make_store(kind, request, tmp_path)
    store.put("n", b"0 start")

    def increment(number: int) -> None:
        for turn in range(3):
            while True:
                body = store.get("n")
                value = int(b"".join(body).split()[0])
                try:
                    new = b"%d %d-%d" % (value + 1, number, turn)
                    store.put_if_match("n", new, str(body.info.etag))
                    break
                except ConditionFailedError:
                    continue

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(increment, range(8)))
    assert read(store, "n").split()[0] == b"24"


# Listing.


def fill(store: ObjectStore, names: list[str], data: Callable[[str], bytes] = str.encode) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(name, data(name)), names))


def test_listing_is_in_byte_order_of_whole_keys(store):
    names = [
        *["a/x", "a-b", "a.t", "a0", "a/b-c", "a/b/d", "a/b.e", "a/b0", "Z", "é/1", "é-2"],
        *["a b/c", "a b-d", "日/1", "\U0001f600/1", "\uff5e", "b/c/d/e/f"],
    ]
    fill(store, names)
    ordered = sorted(names, key=str.encode)
    for _ in range(2):
        assert keys(store) == ordered
    for after in names:
        expected = [name for name in ordered if name.encode() > after.encode()]
        assert keys(store, start_after=after) == expected
    assert keys(store, "a", start_after="a-b") == [
        name for name in ordered if name.startswith("a") and name > "a-b"
    ]


def test_a_prefix_is_literal_text(store):
    """B02: a prefix is no folder, and no pattern."""
    names = [
        *[
            f"data/x/{folder}/s{n}"
            for folder in ("train", "training", "train-old")
            for n in range(3)
        ],
        *[
            "data/x/train.jsonl",
            "data/x/train_v2/s0",
            "data/run[1]/a",
            "data/run1/a",
            "data/x/train-",
        ],
    ]
    fill(store, names)
    for _ in range(2):
        for prefix in (
            "data/x/train/",
            "data/x/train",
            "data/x/train-",
            "data/run[1]",
            "data/x/tr",
            "da",
        ):
            expected = sorted(name for name in names if name.startswith(prefix))
            assert keys(store, prefix) == expected
    assert keys(store, "data/x/train/") == [f"data/x/train/s{n}" for n in range(3)]
    assert keys(store, "nothing/") == []
    assert keys(store, "data/x/train/s0") == ["data/x/train/s0"]
    assert keys(store, "data/x/train/s0/") == []


def test_listing_tells_sizes_and_etags(store):
    info = store.put("a/k", b"12345")
    [listed] = store.list("a/")
    assert (listed.key, listed.size_bytes, listed.etag) == ("a/k", 5, info.etag)


def test_folder_listing_tells_objects_and_folders_apart(store):
    fill(store, ["a/1", "a/2", "a/b/1", "a/b/c/2", "a-b", "top"])
    [page] = store.list_folder("a/")
    assert sorted(info.key for info in page.objects) == ["a/1", "a/2"]
    assert page.prefixes == ("a/b/",)
    [page] = store.list_folder("")
    assert sorted(info.key for info in page.objects) == ["a-b", "top"]
    assert page.prefixes == ("a/",)
    [page] = store.list_folder("nothing/")
    assert (page.objects, page.prefixes) == ((), ())


@pytest.mark.parametrize(
    ("kind", "size"), [("memory", 1000), ("file", 1000), ("moto", 100)], indirect=False
)
def test_folder_listing_comes_in_pages(kind, size, request, tmp_path, monkeypatch):
    # Over a thousand objects take moto ten seconds.
    monkeypatch.setattr(_s3_listing, "PAGE_KEYS", size)
    store = make_store(kind, request, tmp_path)
    names = [f"d/{n:04}" for n in range(size + 5)]
    fill(store, names + [f"d/f{n}/x" for n in range(3)], lambda _: b"1")
    pages = list(store.list_folder("d/"))
    assert [len(page.objects) + len(page.prefixes) for page in pages] == [size, 8]
    assert [info.key for page in pages for info in page.objects] == names
    assert [prefix for page in pages for prefix in page.prefixes] == ["d/f0/", "d/f1/", "d/f2/"]
    assert len(list(store.list_folder("d/", max_pages=1))) == 1
    assert keys(store, "d/", start_after=names[size]) == [
        *names[size + 1 :],
        *[f"d/f{n}/x" for n in range(3)],
    ]


# Odd things.

ODD_NAMES = [
    *[
        "a b.jsonl",
        "a+b.jsonl",
        "a%20b.jsonl",
        "a%2Fb.jsonl",
        "caf\u00e9.jsonl",
        "cafe\u0301.jsonl",
    ],
    *[
        "[x].jsonl",
        "q?.jsonl",
        "star*.jsonl",
        "t\tb.jsonl",
        "a=b&c.jsonl",
        "#h",
        "~t",
        "a\\b",
        "a\"'b",
    ],
    *["a<b>&amp;", "{b}", "a;b,c:d@e$f!(g)", "\u00a0", "a\u2028b", "%", "100%zz"],
]
LONG_NAME = "n" * 980 + ".jsonl"


@pytest.mark.parametrize("kind", ["memory", "file", "moto"], indirect=False)
def test_odd_keys_are_carried_byte_for_byte(kind, request, tmp_path):
    """B04: nothing is coded, normalised or read as a pattern."""
    store = make_store(kind, request, tmp_path)
    prefix = "data/datasets/odd/train/"
    # A file system allows 255 bytes a name.
    names = [prefix + name for name in ODD_NAMES + ([] if kind == "file" else [LONG_NAME])]
    fill(store, names)
    for _ in range(2):
        assert keys(store, prefix) == sorted(names, key=str.encode)
        for name in names:
            assert read(store, name) == name.encode()
            assert store.head(name).size_bytes == len(name.encode())
            assert keys(store, name) == [name]


@pytest.mark.parametrize("kind", ["memory", "moto"], indirect=False)
def test_keys_that_are_no_paths_are_carried_too(kind, request, tmp_path):
    store = make_store(kind, request, tmp_path)
    names = [
        "a//b",
        "/lead",
        "x/./y",
        "trail/",
        "d/",
        "d/sub/",
        "d/sub/x",
        "d/x",
        "e/sub",
        "e/sub/x",
    ]
    fill(store, names, lambda name: b"" if name in {"d/", "d/sub/"} else name.encode())
    for _ in range(2):
        assert keys(store) == sorted(names)
        assert keys(store, "d/") == ["d/", "d/sub/", "d/sub/x", "d/x"]
        assert keys(store, "a/") == ["a//b"]
        for name in names:
            assert store.head(name).key == name
    assert read(store, "a//b") == b"a//b"
    assert read(store, "trail/") == b"trail/"
    [page] = store.list_folder("d/")
    assert [info.key for info in page.objects] == ["d/", "d/x"]
    assert page.prefixes == ("d/sub/",)


# A file system's folders are not objects, and SeaweedFS keeps files.
@pytest.mark.parametrize("kind", ["memory", "moto"], indirect=False)
def test_directory_markers_beside_real_empty_objects(kind, request, tmp_path):
    """B01: the marker ends in a slash, the empty shard does not; both are listed as they are."""
    store = make_store(kind, request, tmp_path)
    root = "data/datasets/alpha/"
    shards = [f"{root}train/shard_{n:05}.jsonl" for n in range(8)]
    fill(store, shards, lambda _: b"x" * 2048)
    fill(store, [root, f"{root}train/", f"{root}train/shard_00008.jsonl"], lambda _: b"")
    for _ in range(2):
        found = {info.key: info.size_bytes for info in store.list(root)}
        assert list(found) == [root, f"{root}train/", *shards, f"{root}train/shard_00008.jsonl"]
        assert list(found.values()) == [0, 0, *[2048] * 8, 0]
    assert read(store, f"{root}train/shard_00008.jsonl", start=0, end=100) == b""


def test_the_endpoint_names_the_store_without_secrets(store):
    assert store.endpoint_id
    assert "quark-test-secret" not in repr(store) + store.endpoint_id + repr(store.__dict__)


@pytest.mark.parametrize("num_bytes", [0, 1000, 9 << 20])
def test_a_file_is_put_whole_whatever_its_size(store, tmp_path, num_bytes):
    path = tmp_path / "file.bin"
    path.write_bytes(bytes(range(250)) * (num_bytes // 250))
    data = path.read_bytes()
    store.put("up/file.bin", b"older")

    put = store.put_file("up/file.bin", path)

    assert (put.key, put.size_bytes) == ("up/file.bin", len(data))
    assert store.head("up/file.bin").etag == put.etag
    assert b"".join(store.get("up/file.bin")) == data
    assert path.read_bytes() == data  # the caller's, and left to it


def test_abandoning_uploads_leaves_objects_and_other_names_alone(store):
    store.put("up/one.bin", b"1")

    assert store.abandon_uploads("up/", lambda _key: True) == 0
    assert store.abandon_uploads("nothing/", lambda _key: True) == 0

    assert [info.key for info in store.list("up/")] == ["up/one.bin"]


def test_an_upload_looks_first_also_where_nothing_is_yet(tmp_path):
    from tools_utilities.chunk_publisher import upload_to
    from tools_utilities.chunk_writer import LineChunkWriter

    store = open_store(StoreSpec(uri=f"file://{tmp_path / 'not' / 'there'}"))
    writer = LineChunkWriter(tmp_path / "chunk.tmp", None)
    writer.add([b'{"a":1}'])
    chunk = writer.finish()

    upload_to(store, "d/", chunk, "chunk_0000.jsonl")

    assert (tmp_path / "not/there/d/chunk_0000.jsonl").read_bytes() == b'{"a":1}\n'
    assert not chunk.path.exists()

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.fakes import StubS3
from tests.fault_store import FaultStore
from tests.stream_parts import (
    GB,
    content,
    entries,
    files,
    memory_manager,
    read_all,
    reader_of,
    stub_manager,
)
from tools_utilities.disk_cache import DiskCache
from tools_utilities.errors import (
    CacheError,
)
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

# B16: folders that cannot be used.


def no_request_before(stub: StubS3, cache_dir: Path) -> CacheError:
    with pytest.raises(CacheError) as caught:
        stub_manager(stub, cache_dir)
    assert not stub.requests
    assert caught.value.exit_code == 2
    return caught.value


def test_b16_a_chosen_folder_that_is_a_file_is_an_error_before_the_first_request(
    aws_environment, tmp_path
):
    (tmp_path / "c").write_bytes(b"mine")
    with StubS3({}) as stub:
        error = no_request_before(stub, tmp_path / "c")
    for words in (str(tmp_path / "c"), "not a directory", "CACHE_DIR"):
        assert words in str(error)
    assert (tmp_path / "c").read_bytes() == b"mine"


AS_NOBODY = """
import os, sys
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.object_store import StoreSpec
from tools_utilities.errors import CacheError
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    StreamingManager.for_store(StoreSpec(uri="s3://b"), cache_dir=sys.argv[1], cache_bytes=10**9)
except CacheError as error:
    print(error.exit_code, error)
"""


@pytest.mark.parametrize("below", ["", "/new/folder"])
def test_b16_a_chosen_folder_that_may_not_be_written_is_an_error(below):
    # Not in tmp_path, whose parents only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        said = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, folder + below],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        Path(folder).chmod(0o755)
    for words in ("2 ", folder + below, "not writable", "CACHE_DIR"):
        assert words in said


def test_an_unusable_default_folder_means_no_cache_and_one_warning(
    aws_environment, tmp_path, caplog
):
    (Path.home() / ".cache").write_text("a file")
    aws_environment.chdir(tmp_path)
    with StubS3({"d/k": content("k", 5000)}) as stub:
        manager = StreamingManager("bucket", endpoint_url=stub.url)
        [info] = manager.store.list("d/")
        for _ in range(3):
            assert read_all(manager, info) == content("k", 5000)
        assert len([record for record in caplog.records if "cache folder" in record.message]) == 1
        assert len(stub.sent("GET", "d/k")) == 1  # kept in memory


def test_b16_a_folder_in_the_home_with_a_space(aws_environment, tmp_path):
    manager = memory_manager(tmp_path, "e", cache_dir="~/q cache")
    info = manager.store.put("k", b"data")
    assert read_all(manager, info) == b"data"
    assert len(entries(Path.home() / "q cache")) == 1
    assert not list(Path.cwd().glob("~*"))


class FullDisk:
    """Not a byte is left."""

    def free_and_total_bytes(self, folder):
        return 4096, 8 << 20

    def allocate(self, fd, num_bytes):
        raise OSError(28, "No space left on device")


def test_a_full_disk_means_reading_on_without_a_cache(tmp_path, caplog):
    store = FaultStore()
    infos = [store.put(f"k{n}", content(str(n), 50_000)) for n in range(4)]
    reader = reader_of(store)
    reader._cache = DiskCache(tmp_path, GB, disk=FullDisk())
    for _ in range(2):
        for number, info in enumerate(infos):
            assert read_all(reader, info) == content(str(number), 50_000)
    [record] = [record for record in caplog.records if "is full" in record.message]
    for words in (str(tmp_path), "50000 bytes needed", "4096 bytes free"):
        assert words in record.message
    assert reader.to_dict()["objects_uncached"] == 8
    assert not entries(tmp_path)


class DiskThatTurnsReadOnly(FullDisk):
    """Takes two objects; then the system mounts it anew without writing, as after an error."""

    def __init__(self) -> None:
        self.left = 2

    def free_and_total_bytes(self, folder):
        return GB, GB

    def allocate(self, fd, num_bytes):
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EROFS, "Read-only file system")


def test_a_disk_that_turns_read_only_means_reading_on_without_a_cache(tmp_path, caplog):
    store = FaultStore()
    infos = [store.put(f"k{n}", content(str(n), 50_000)) for n in range(4)]
    reader = reader_of(store)
    reader._cache = DiskCache(tmp_path, GB, disk=DiskThatTurnsReadOnly())
    for _ in range(2):
        for number, info in enumerate(infos):
            assert read_all(reader, info) == content(str(number), 50_000)
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    for words in (str(tmp_path), "Read-only file system", "without a cache"):
        assert words in record.message
    assert len(entries(tmp_path)) == 2


class LyingDisk(FullDisk):
    """Promises room and then has none, as file systems without allocation do."""

    def free_and_total_bytes(self, folder):
        return GB, GB

    def allocate(self, fd, num_bytes):
        os.close(os.dup(fd))


def test_a_disk_that_fills_up_in_the_middle_of_a_file_loses_nothing(tmp_path, caplog):
    import resource

    store = FaultStore()
    info = store.put("k", content("k", 3_000_000))
    reader = reader_of(store)
    reader._cache = DiskCache(tmp_path, GB, disk=LyingDisk())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        assert read_all(reader, info) == content("k", 3_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "without a cache" in caplog.text
    assert not entries(tmp_path)
    assert not [path for path in files(tmp_path) if path.suffix == ".tmp"]


def test_a_folder_deleted_in_the_middle_of_a_run_is_made_again(tmp_path):
    import shutil

    manager = memory_manager(tmp_path, "d")
    infos = [manager.store.put(f"k{n}", content(str(n), 5000)) for n in range(3)]
    for number, info in enumerate(infos):
        assert read_all(manager, info) == content(str(number), 5000)
        shutil.rmtree(tmp_path / "cache")
    assert read_all(manager, infos[0]) == content("0", 5000)
    assert len(entries(tmp_path)) == 1

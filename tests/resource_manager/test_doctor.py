"""Each check of the doctor: what it says and the fix it gives."""

import importlib.metadata
import os
import stat

import pytest

from resource_manager.doctor import (
    Check,
    as_json,
    check_cache_disk,
    check_clock,
    check_folder,
    check_lines,
    check_open_files,
    check_python,
    check_torch,
    closing_line,
    gpu_text,
    run_checks,
)
from tests.fakes import Reply, StubS3
from tools_utilities.settings import load_settings
from tools_utilities.terminal_text import plain


def test_python():
    assert check_python((3, 11, 0)).state == "ok"
    assert check_python((3, 10, 9)).state == "fail"
    assert check_python((3, 10, 9)).fix


def test_torch_is_looked_up_not_imported():
    def missing(_name: str) -> str:
        raise importlib.metadata.PackageNotFoundError("torch")

    assert check_torch(lambda _name: "2.13.0").found.startswith("2.13.0")
    absent = check_torch(missing)
    assert absent.state == "fail"
    assert "install" in absent.fix


def test_gpus_are_counted(tmp_path):
    assert gpu_text(tmp_path) == "no NVIDIA device"
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    assert gpu_text(tmp_path) == "2 NVIDIA devices"


def test_folders(tmp_path):
    before = list(tmp_path.rglob("*"))
    assert check_folder("cache", tmp_path / "not" / "yet").state == "ok"
    assert list(tmp_path.rglob("*")) == before
    (tmp_path / "file").touch()
    blocked = check_folder("cache", tmp_path / "file" / "x")
    assert blocked.state == "fail"
    assert "is a file" in blocked.fix


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        found = check_folder("cache", tmp_path)
    finally:
        tmp_path.chmod(stat.S_IRWXU)
    assert found.state == "fail"
    assert "writable" in found.fix


def test_cache_disk(tmp_path):
    local = f"/dev/sda1 {tmp_path} ext4 rw 0 0\n"
    shared = f"server:/x {tmp_path} nfs4 rw 0 0\n"
    assert check_cache_disk(tmp_path / "c", 1, local).state == "ok"
    assert "CACHE_DIR" in check_cache_disk(tmp_path / "c", 1, shared).fix
    assert "CACHE_GB" in check_cache_disk(tmp_path / "c", 1 << 60, local).fix


def test_open_files():
    assert check_open_files(256, 65536).state == "ok"
    assert check_open_files(256, -1).state == "ok"
    assert "1024" in check_open_files(256, 512).fix


@pytest.mark.parametrize(
    ("date", "state"),
    [
        ("Thu, 01 Jan 1970 00:16:40 GMT", "ok"),
        ("Thu, 01 Jan 1970 00:30:00 GMT", "fail"),
        ("yesterday", "ok"),
        (None, "ok"),
    ],
)
def test_clock(date, state):
    check = check_clock("http://x", date_of=lambda _url: date, clock=lambda: 1000.0)
    assert check.state == state
    assert bool(check.fix) is (state == "fail")


def test_clock_of_a_server_and_of_none():
    with StubS3({}) as s3:
        assert (
            "from the store's" in check_clock(s3.url).found
            or "no time" in check_clock(s3.url).found
        )
        url = s3.url
    assert "no time" in check_clock(url).found


def test_all_checks_of_a_local_project(tmp_path, aws_environment):
    aws_environment.setenv("QUARK_BUKCET", "typo")
    (tmp_path / "quark.yaml").write_text("cache_gb: 0.001\n")
    checks = run_checks(load_settings(start_dir=tmp_path))
    names = [check.name for check in checks]
    for name in ("python", "torch", "root", "run folder", "cache", "disk", "open files", "store"):
        assert name in names
    assert not [check for check in checks if check.state == "fail"]
    [typo] = [check for check in checks if check.name == "environment"]
    assert "QUARK_BUKCET" in typo.found
    lines = [plain(line) for line in check_lines(checks)]
    assert any(line.startswith("ok    python") for line in lines)
    assert any("fix: " in line for line in lines)
    assert len(as_json(checks)["checks"]) == len(checks)
    assert not (tmp_path / "runs").exists()


def test_the_last_line_says_whether_a_run_can_start():
    fine = Check(name="python", state="ok", found="3.13")
    slow = Check(name="disk", state="warn", found="nfs", fix="Move it.")
    none = Check(name="torch", state="fail", found="not installed", fix="Install it.")
    assert plain(closing_line([fine])) == "ready: 1 checks, nothing wrong"
    assert plain(closing_line([fine, slow])) == "ready, but look at: disk"
    assert plain(closing_line([slow, none, fine])) == "not ready: torch, disk"


def test_a_store_that_refuses_is_told_with_its_fix(tmp_path, aws_environment):
    with StubS3({}) as s3:
        s3.script = lambda _request: Reply(403, body=b"<Error><Code>AccessDenied</Code></Error>")
        aws_environment.setenv("AWS_ENDPOINT_URL", s3.url)
        settings = load_settings(start_dir=tmp_path, overrides={"bucket": "mine"})
        [store] = [check for check in run_checks(settings) if check.name == "store"]
    assert store.state == "fail"
    assert "mine" in store.found
    assert store.fix

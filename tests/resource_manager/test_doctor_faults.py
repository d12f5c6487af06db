"""Twelve planted faults: each gives a line of its own with a fix; a healthy machine gives none."""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import pytest

from resource_manager.doctor import (
    Check,
    check_cache_disk,
    check_cache_left,
    check_clock,
    check_open_files,
    check_torch,
    run_checks,
)
from tests.fakes import Reply, Request, StubS3
from tools_utilities.cache_cleaning import clean_cache
from tools_utilities.disk_cache import DiskCache, entry_id
from tools_utilities.object_store import ObjectInfo
from tools_utilities.settings import load_settings

Plant = Callable[[Request], Reply | None]


def refused(code: str, status: int = 403, **headers: str) -> Reply:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    return Reply(status, headers=headers, body=body)


def checks_with(tmp_path: Path, environment, plant: Plant | None = None, **settings) -> list[Check]:
    with StubS3({"d/a.jsonl": b"{}\n"}) as s3:
        s3.script = plant or (lambda _request: None)
        environment.setenv("AWS_ENDPOINT_URL", s3.url)
        environment.setenv("CACHE_GB", "0.001")
        given = {"bucket": "mine", "cache_dir": str(tmp_path / "cache"), **settings}
        return run_checks(load_settings(start_dir=tmp_path, overrides=given))


def wrong(checks: list[Check]) -> list[Check]:
    return [check for check in checks if check.state != "ok"]


def test_a_healthy_machine_gives_none(tmp_path, aws_environment):
    checks = checks_with(tmp_path, aws_environment)
    assert wrong(checks) == []
    assert {"store", "reading", "region", "clock", "cache locks"} <= {one.name for one in checks}


@pytest.mark.parametrize(
    ("code", "status", "name", "words"),
    [
        ("ExpiredToken", 400, "store", "expired"),
        ("AccessDenied", 403, "store", "list"),
        ("RequestTimeTooSkewed", 403, "store", "clock"),
        ("NoSuchBucket", 404, "store", "mine"),
    ],
)
def test_what_the_store_says(tmp_path, aws_environment, code, status, name, words):
    found = wrong(checks_with(tmp_path, aws_environment, lambda _request: refused(code, status)))
    [line] = [check for check in found if check.name == name]
    assert line.state == "fail"
    assert words in f"{line.found} {line.fix}".lower()
    assert line.fix


def test_no_get(tmp_path, aws_environment):
    def plant(request: Request) -> Reply | None:
        return refused("AccessDenied") if request.key and request.method == "GET" else None

    [line] = wrong(checks_with(tmp_path, aws_environment, plant))
    assert (line.name, line.state) == ("reading", "fail")
    assert "d/a.jsonl" in line.found
    assert line.fix


def test_wrong_region(tmp_path, aws_environment):
    def plant(request: Request) -> Reply | None:
        if "/eu-west-9/" in request.headers.get("authorization", ""):
            return None
        return refused("PermanentRedirect", 301, **{"x-amz-bucket-region": "eu-west-9"})

    [line] = wrong(checks_with(tmp_path, aws_environment, plant))
    assert (line.name, line.state) == ("region", "warn")
    assert "region=eu-west-9" in line.fix


def test_bad_endpoint(tmp_path, aws_environment):
    settings = {"bucket": "mine", "endpoint_url": "http://127.0.0.1:9", "cache_gb": "0.001"}
    found = wrong(run_checks(load_settings(start_dir=tmp_path, overrides=settings)))
    [line] = [check for check in found if check.name == "store"]
    assert line.state == "fail"
    assert "127.0.0.1:9" in line.found
    assert line.fix


def test_stale_locks(tmp_path):
    cache = DiskCache(tmp_path, 1_000_000)
    entry = entry_id("store", ObjectInfo(key="k", size_bytes=10, etag="e"))
    assert entry is not None
    living = cache.try_turn(entry)
    assert living is not None
    assert check_cache_left(tmp_path).state == "ok"
    cache.end_turn(living)
    # What a killed download leaves: its lock's file and its piece, locked by nobody.
    (cache._layout.working / f"{'a' * 40}.lock").touch()
    cache._layout.new_temporary("b" * 40).write_bytes(b"x" * 100)
    line = check_cache_left(tmp_path)
    assert line.state == "warn"
    assert "2 files (100 B)" in line.found
    assert "clear the cache" in line.fix
    clean_cache(tmp_path)
    assert check_cache_left(tmp_path).state == "ok"
    assert check_cache_left(tmp_path / "none").state == "ok"
    cache.close()


def test_what_the_machine_lacks(tmp_path):
    def missing(_name: str) -> str:
        raise importlib.metadata.PackageNotFoundError("torch")

    planted = {
        "torch": check_torch(missing),
        "full disk": check_cache_disk(tmp_path, 1 << 60, ""),
        "network disk": check_cache_disk(tmp_path, 1, f"s:/x {tmp_path} nfs4 rw 0 0\n"),
        "open files": check_open_files(256, 512),
        "clock": check_clock(
            "http://x", date_of=lambda _url: "Thu, 01 Jan 1970 01:00:00 GMT", clock=lambda: 1.0
        ),
    }
    for name, check in planted.items():
        assert check.state != "ok", name
        assert check.fix, name
    assert len({check.fix for check in planted.values()}) == len(planted)

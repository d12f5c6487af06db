"""Twelve planted faults: each gives one line of its own with a fix; a healthy machine gives none."""

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import _ntuple_diskusage as DiskUsage  # noqa: N812 - the type of shutil.disk_usage
from typing import Any

import pytest

from resource_manager.doctor import Check, Machine, check_cache_left, check_lines, run_checks
from tests.fakes import Reply, Request, StubS3
from tools_utilities.cache_cleaning import clean_cache
from tools_utilities.cache_entry import entry_id
from tools_utilities.disk_cache import DiskCache
from tools_utilities.object_store import ObjectInfo
from tools_utilities.scripts.quark_cli import run_program
from tools_utilities.settings import load_settings
from tools_utilities.terminal_text import plain

Plant = Callable[[Request], Reply | None]
GIGABYTE = 10**9
LONG_AGO = "Thu, 01 Jan 1970 00:00:00 GMT"


def refused(code: str, status: int = 403, **headers: str) -> Plant:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    return lambda _request: Reply(status, headers=headers, body=body)


def no_get(request: Request) -> Reply | None:
    return refused("AccessDenied")(request) if request.key and request.method == "GET" else None


def other_region(request: Request) -> Reply | None:
    if "/eu-west-9/" in request.headers.get("authorization", ""):
        return None
    moved = refused("PermanentRedirect", 301, **{"x-amz-bucket-region": "eu-west-9"})
    return moved(request)


def late_clock(request: Request) -> Reply | None:
    return Reply(200, {"date": LONG_AGO}) if request.method == "HEAD" else None


@pytest.fixture
def machine(tmp_path, aws_environment):
    """A store and settings with which nothing is wrong; returns the store to plant faults in."""
    with StubS3({"d/a.jsonl": b"{}\n"}) as s3:
        aws_environment.chdir(tmp_path)
        (tmp_path / "quark.yaml").write_text("bucket: mine\ncache_gb: 0.001\ncache_dir: cache\n")
        aws_environment.setenv("AWS_ENDPOINT_URL", s3.url)
        yield s3


def wrong(checks: list[Check]) -> list[Check]:
    return [check for check in checks if check.state != "ok"]


def doctor(capsys, *flags: str) -> tuple[int, list[Check]]:
    """Run the program; returns its exit code and the checks that are not ok."""
    code = run_program(["doctor", "--json", *flags])
    told = json.loads(capsys.readouterr().out)
    return code, wrong([Check(**one) for one in told["checks"]])


def test_a_healthy_machine_gives_none(machine, capsys):
    assert doctor(capsys) == (0, [])
    assert run_program(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "fix:" not in said
    assert said.splitlines()[-1].startswith("ready: ")
    names = {check.name for check in run_checks(load_settings(start_dir=Path.cwd()))}
    assert {"store", "reading", "region", "clock", "cache locks", "disk", "torch"} <= names


STORE_FAULTS: dict[str, tuple[Plant, str, str, str]] = {
    # what is planted, the line's name, its state, a word of its fix
    "expired credentials": (refused("ExpiredToken", 400), "store", "fail", "Get new ones"),
    "wrong region": (other_region, "region", "warn", "region=eu-west-9"),
    "no list": (refused("AccessDenied"), "store", "fail", "s3:ListBucket"),
    "no get": (no_get, "reading", "fail", "s3:GetObject"),
    "clock skew": (refused("RequestTimeTooSkewed"), "store", "fail", "clock"),
    "clock skew, not refused": (late_clock, "clock", "fail", "NTP"),
    "wrong bucket": (refused("NoSuchBucket", 404), "store", "fail", "Check the name"),
}


@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_what_the_store_has(machine, capsys, fault):
    machine.script, name, state, fix = STORE_FAULTS[fault]
    code, [line] = doctor(capsys)
    assert (line.name, line.state) == (name, state)
    assert fix in line.fix
    assert code == (1 if state == "fail" else 0)


def test_every_fix_is_another(machine, capsys):
    fixes = []
    for machine.script, *_ in STORE_FAULTS.values():
        fixes += [line.fix for line in doctor(capsys)[1]]
    assert len(set(fixes)) == len(STORE_FAULTS)


def test_bad_endpoint(machine, capsys, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    code, [line] = doctor(capsys)
    assert (code, line.name, line.state) == (1, "store", "fail")
    assert "127.0.0.1:9" in line.found
    assert "endpoint" in line.fix


def test_full_disk(machine, capsys):
    code, [line] = doctor(capsys, "--override", "cache_gb=1000000000")
    assert (code, line.name, line.state) == (0, "disk", "warn")
    assert "CACHE_GB" in line.fix


def test_stale_locks(machine, capsys, tmp_path):
    folder = tmp_path / "cache"
    cache = DiskCache(folder, 1_000_000)
    entry = entry_id("store", ObjectInfo(key="k", size_bytes=10, etag="e"))
    assert entry is not None
    living = cache.try_turn(entry)
    assert living is not None
    assert doctor(capsys) == (0, [])
    cache.end_turn(living)
    # What a killed download leaves: its lock's file and its piece, locked by nobody.
    (cache._layout.working / f"{'a' * 40}.lock").touch()
    cache._layout.new_temporary("b" * 40).write_bytes(b"x" * 100)
    code, [line] = doctor(capsys)
    assert (code, line.name, line.state) == (0, "cache locks", "warn")
    assert "2 files (100 B)" in line.found
    assert "clear the cache" in line.fix
    clean_cache(folder)
    assert doctor(capsys) == (0, [])
    assert check_cache_left(tmp_path / "none").state == "ok"
    cache.close()


def test_low_open_file_limit(machine):
    program = [sys.executable, "-m", "tools_utilities.scripts.quark_cli", "doctor", "--json"]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 512 && exec "$@"', "sh", *program], capture_output=True, text=True,
        check=False, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    [line] = [one for one in json.loads(done.stdout)["checks"] if one["state"] != "ok"]
    assert (done.returncode, line["name"], line["state"]) == (0, "open files", "warn")
    assert "ulimit -Hn" in line["fix"]


def no_torch(_name: str) -> str:
    raise importlib.metadata.PackageNotFoundError("torch")


MACHINES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "no torch": (lambda _folder: Machine(version_of=no_torch), "torch", "pip install torch"),
    "network-disk cache": (
        lambda folder: Machine(mounts=lambda: f"server:/x {folder} nfs4 rw 0 0\n"), "disk",
        "CACHE_DIR=",
    ),
    "full disk": (
        lambda _folder: Machine(usage_of=lambda _path: DiskUsage(GIGABYTE, GIGABYTE, 0)), "disk",
        "CACHE_GB to at most 0.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", MACHINES)
def test_what_no_machine_can_be_given(machine, tmp_path, fault):
    make, name, fix = MACHINES[fault]
    checks = run_checks(load_settings(start_dir=tmp_path), make(tmp_path))
    [line] = wrong(checks)
    assert line.name == name
    assert fix in line.fix
    [said] = [text for text in map(plain, check_lines(checks)) if "fix: " in text]
    assert fix in said

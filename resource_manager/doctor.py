"""`quark doctor`: what a run needs of this machine, one check a line, each failure with its fix.

Every check is a function from facts to a `Check`; nothing is changed and no file is left behind.
"""

import importlib.metadata
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from resource_manager.plan import NETWORK_FILESYSTEMS, filesystem_of
from tools_utilities.cache_cleaning import leftovers
from tools_utilities.errors import QuarkError
from tools_utilities.object_store import ObjectStore, open_store
from tools_utilities.settings import Settings
from tools_utilities.terminal_text import Line, Span, human_bytes

OLDEST_PYTHON = (3, 11)
LEAST_FREE_SHARE = 0.05
LEAST_OPEN_FILES = 1024
MOST_CLOCK_SECONDS = 300
"""Signed requests are refused when clocks differ by more than about 15 minutes; warn well before."""
MARKS = {"ok": "green", "warn": "yellow", "fail": "error"}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    state: str
    """ok, warn (runs may be slow or limited) or fail (runs will not start)."""
    found: str
    fix: str = ""


def open_file_limits() -> tuple[int, int]:
    """Return the soft and the hard limit of open files."""
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)


def mounts() -> str:
    """Return what is mounted where, as the system lists it; empty where it does not."""
    path = Path("/proc/mounts")
    return path.read_text(errors="backslashreplace") if path.exists() else ""


class Machine(NamedTuple):
    """What the checks ask of the machine; faults that none can be given are planted here."""

    version_of: Callable[[str], str] = importlib.metadata.version
    mounts: Callable[[], str] = mounts
    usage_of: Callable[[Path], Any] = shutil.disk_usage
    open_file_limits: Callable[[], tuple[int, int]] = open_file_limits
    clock: Callable[[], float] = time.time


THIS_MACHINE = Machine()


def run_checks(settings: Settings, machine: Machine = THIS_MACHINE) -> list[Check]:
    """Return every check's outcome, in the order in which a run would meet them."""
    return list(_checks(settings, machine))


def check_lines(checks: list[Check]) -> list[Line]:
    """Return the checks as lines for people."""
    width = max(len(check.name) for check in checks)
    lines: list[Line] = []
    for check in checks:
        mark = Span(f"{check.state:4}", MARKS[check.state])
        lines.append([mark, f"  {check.name:{width}}  {check.found}"])
        if check.fix and check.state != "ok":
            lines.append([" " * (width + 8), Span(f"fix: {check.fix}", "cyan")])
    return lines


def closing_line(checks: list[Check]) -> Line:
    """Return the last line: whether a run can start here, and what to look at."""
    failed = [check.name for check in checks if check.state == "fail"]
    warned = [check.name for check in checks if check.state == "warn"]
    if failed:
        return [Span("not ready: ", "error"), ", ".join([*failed, *warned])]
    if warned:
        return [Span("ready, but look at: ", "yellow"), ", ".join(warned)]
    return [Span("ready", "green"), f": {len(checks)} checks, nothing wrong"]


def _checks(settings: Settings, machine: Machine) -> Iterator[Check]:
    yield check_python(sys.version_info[:3])
    yield check_torch(machine.version_of)
    yield check_folder("root", settings.root)
    yield check_folder("run folder", settings.path("out_dir") or settings.root / "runs")
    cache_dir = settings.path("cache_dir")
    if cache_dir is not None:
        yield check_folder("cache", cache_dir)
        yield check_cache_disk(
            cache_dir, settings.cache_bytes, machine.mounts(), usage_of=machine.usage_of
        )
        yield check_cache_left(cache_dir)
    yield check_open_files(*machine.open_file_limits())
    yield from check_store(settings, clock=machine.clock)
    for warning in settings.warnings:
        yield Check(name="environment", state="warn", found=warning, fix="Unset or rename it.")


def check_python(version: tuple[int, ...]) -> Check:
    """Return whether this Python is new enough."""
    text = ".".join(str(part) for part in version)
    if tuple(version[:2]) >= OLDEST_PYTHON:
        return Check(name="python", state="ok", found=text)
    return Check(name="python", state="fail", found=text, fix="Install Python 3.11 or newer.")


def check_torch(version_of: Callable[[str], str] = importlib.metadata.version) -> Check:
    """Return whether PyTorch is installed; it is not imported."""
    try:
        version = version_of("torch")
    except importlib.metadata.PackageNotFoundError:
        fix = "pip install torch (see constraints.txt for the tested version)"
        return Check(name="torch", state="fail", found="not installed", fix=fix)
    found = f"{version}; {gpu_text()}"
    return Check(name="torch", state="ok", found=found)


def gpu_text(devices: Path = Path("/dev")) -> str:
    """Return what accelerator there seems to be, without importing torch."""
    cards = sorted(path.name for path in devices.glob("nvidia[0-9]*"))
    return f"{len(cards)} NVIDIA device{'s' * (len(cards) != 1)}" if cards else "no NVIDIA device"


def check_folder(name: str, folder: Path) -> Check:
    """Return whether files can be made in a folder, or in what would hold it."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        fix = f"{existing} is a file; name another folder."
        return Check(name=name, state="fail", found=str(folder), fix=fix)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        found = f"{folder}: {error.strerror or error}"
        return Check(name=name, state="fail", found=found, fix=f"Make {existing} writable.")
    return Check(name=name, state="ok", found=f"{folder} is writable")


def check_cache_disk(
    cache_dir: Path,
    budget_bytes: int,
    mounts: str,
    *,
    usage_of: Callable[[Path], Any] = shutil.disk_usage,
) -> Check:
    """Return whether the cache's disk is local and has room for its budget."""
    existing = cache_dir
    while not existing.exists():
        existing = existing.parent
    usage = usage_of(existing)
    filesystem = filesystem_of(str(existing.resolve()), mounts)
    found = f"{human_bytes(usage.free)} free of {human_bytes(usage.total)}"
    if filesystem.lower().startswith(NETWORK_FILESYSTEMS):
        fix = "Put the cache on a local disk: CACHE_DIR=/local/folder."
        return Check(name="disk", state="warn", found=f"{found}, on {filesystem}", fix=fix)
    room = usage.free - LEAST_FREE_SHARE * usage.total
    if room < budget_bytes:
        fix = f"Set CACHE_GB to at most {max(0.0, room / 1e9):.1f}, or free some space."
        found = f"{found}; the cache may take {human_bytes(budget_bytes)}"
        return Check(name="disk", state="warn", found=found, fix=fix)
    return Check(name="disk", state="ok", found=found)


def check_open_files(soft: int, hard: int) -> Check:
    """Return whether enough files may be open; a run raises the soft limit to the hard one."""
    found = f"{soft} (up to {hard})"
    if hard != -1 and hard < LEAST_OPEN_FILES:
        fix = f"Raise the hard limit to {LEAST_OPEN_FILES} (ulimit -Hn, limits.conf)."
        return Check(name="open files", state="warn", found=found, fix=fix)
    return Check(name="open files", state="ok", found=found)


def check_store(settings: Settings, *, clock: Callable[[], float] = time.time) -> Iterator[Check]:
    """Yield whether the configured store answers and whether its clock agrees with ours."""
    try:
        spec = settings.store_spec()
        store = open_store(spec)
        next(iter(store.list_folder("", max_pages=1)), None)
    except QuarkError as error:
        yield Check(name="store", state="fail", found=str(error), fix=error.hint)
        return
    yield Check(name="store", state="ok", found=f"{store.endpoint_id} can be listed")
    yield check_reading(store)
    yield from check_region(store)
    if spec.uri.startswith("s3://"):
        # An endpoint that the environment gives is known to the store, without its scheme.
        host = store.endpoint_id.partition("@")[2]
        own = f"http://{host}" if host else "https://s3.amazonaws.com"
        yield check_clock(spec.endpoint_url or own, clock=clock)


def check_reading(store: ObjectStore) -> Check:
    """Return whether objects can be read, by one byte of the first: listing is another permission."""
    try:
        first = next(iter(store.list("")), None)
        if first is None:
            return Check(name="reading", state="ok", found="no object yet to try it on")
        body = store.get(first.key, start=0, end=1)
        for _ in body:
            break
        body.close()
    except QuarkError as error:
        return Check(name="reading", state="fail", found=str(error), fix=error.hint)
    return Check(name="reading", state="ok", found="the first object can be read")


def check_region(store: ObjectStore) -> Iterator[Check]:
    """Yield whether the bucket is in the region that was asked for; only S3 has regions."""
    asked, found = getattr(store, "regions", (None, None))
    if asked is None and found is None:
        return
    if asked == found:
        yield Check(name="region", state="ok", found=str(found))
        return
    yield Check(
        name="region", state="warn", found=f"{asked or 'none'} was asked for, it is in {found}",
        fix=f"Set region={found}: every process asks in vain once.",
    )  # fmt: skip


def check_cache_left(cache_dir: Path) -> Check:
    """Return whether downloads that died left files or locks in the cache."""
    left = leftovers(cache_dir)
    if not left:
        return Check(name="cache locks", state="ok", found="none left by dead downloads")
    size = human_bytes(sum(size for _, size in left))
    found = f"{len(left)} files ({size}) left by dead downloads, such as {left[0][0]}"
    fix = 'They are removed by the next run, or now: quark "clear the cache".'
    return Check(name="cache locks", state="warn", found=found, fix=fix)


def check_clock(
    endpoint_url: str,
    date_of: Callable[[str], str | None] | None = None,
    clock: Callable[[], float] = time.time,
) -> Check:
    """Return whether this machine's clock agrees with the store's; signatures depend on it."""
    text = (date_of or _http_date)(endpoint_url)
    if text is None:
        return Check(name="clock", state="ok", found="the store tells no time to compare with")
    try:
        apart = abs(clock() - parsedate_to_datetime(text).timestamp())
    except (TypeError, ValueError):
        return Check(name="clock", state="ok", found=f"the store's time cannot be read: {text}")
    if apart > MOST_CLOCK_SECONDS:
        fix = "Set the clock (NTP): signed requests will be refused."
        return Check(name="clock", state="fail", found=f"{apart:.0f} s from the store's", fix=fix)
    return Check(name="clock", state="ok", found=f"{apart:.0f} s from the store's")


def _http_date(endpoint_url: str) -> str | None:
    import http.client

    parts = urlsplit(endpoint_url)
    kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in kinds or parts.hostname is None:
        return None
    connection = kinds[parts.scheme](parts.hostname, parts.port, timeout=5)
    try:
        connection.request("HEAD", "/")
        date: str | None = connection.getresponse().getheader("Date")
    except (OSError, http.client.HTTPException):
        return None
    else:
        return date
    finally:
        connection.close()


def as_json(checks: list[Check]) -> dict[str, Any]:
    """Return the checks for `--json`."""
    return {"schema": 1, "checks": [msgspec.to_builtins(check) for check in checks]}

"""A wheel of the Quark that runs here, for another machine; made of its files, by their content.

No build tool and no index: what is installed here, from a checkout or not, is what is sent, and
the same files make the same bytes (PEP 427; times and order fixed), so a machine that has them needs
nothing new.
"""

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import msgspec

import brain
from tools_utilities.errors import UsageError

NAME = "quark-launcher"
PACKAGES = ("brain", "knowledge_hub", "resource_manager", "tools_utilities")
MODULES = ("quark_cli.py",)
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_SUFFIXES = (".py", ".toml", ".json", ".yaml", ".txt", ".md", ".typed")
_EXTRA = re.compile(r"\s*;?\s*(?:and\s+)?extra\s*==\s*['\"]([^'\"]+)['\"]")


class Wheel(msgspec.Struct, frozen=True, kw_only=True):
    """A wheel and what it needs."""

    file_name: str
    data: bytes
    sha256: str
    requirements: tuple[str, ...]
    """Of pip, in order."""
    constraints: tuple[str, ...]
    """`name==version` of everything that these need, as it is installed here."""


def build_wheel(
    extras: tuple[str, ...] = (),
    *,
    root: Path | None = None,
    without: frozenset[str] = frozenset(),
) -> Wheel:
    """Return the wheel of this Quark, its requirements with those of `extras`.

    `without`: names of packages that whoever it is for does not load.

    Raises:
        UsageError: this Quark was never installed, so nobody knows what it needs.
    """
    found = _distribution()
    folder = root or Path(brain.__file__).parents[1]
    prefix = f"{NAME.replace('-', '_')}-{found.version}"
    entries = dict(_files(folder))
    entries[f"{prefix}.dist-info/METADATA"] = _metadata(found).encode()
    entries[f"{prefix}.dist-info/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: quark\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = f"{prefix}.dist-info/RECORD"
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in entries.items()]
    entries[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    data = _zipped(entries)
    wanted = tuple(line for line in _requirements(found, extras) if _name_of(line) not in without)
    return Wheel(
        file_name=f"{prefix}-py3-none-any.whl",
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        requirements=wanted,
        constraints=_constraints(wanted),
    )


def _distribution() -> Distribution:
    try:
        return distribution(NAME)
    except PackageNotFoundError as error:
        raise UsageError(
            "this Quark is not installed, so nobody knows what another machine needs for it",
            hint="Install it: python -m pip install -e .",
        ) from error


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for name in MODULES:
        if (folder / name).is_file():
            yield name, (folder / name).read_bytes()
    for package in PACKAGES:
        for path in sorted((folder / package).rglob("*")):
            if path.suffix in _SUFFIXES and path.is_file():
                yield path.relative_to(folder).as_posix(), path.read_bytes()


def _metadata(found: Distribution) -> str:
    return found.read_text("METADATA") or f"Metadata-Version: 2.1\nName: {NAME}\n"


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            info = zipfile.ZipInfo(name, _EARLIEST)
            info.external_attr, info.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return buffer.getvalue()


def _requirements(found: Distribution, extras: tuple[str, ...]) -> tuple[str, ...]:
    wanted = []
    for line in found.requires or ():
        extra = _EXTRA.search(line)
        if extra is None:
            wanted.append(line)
        elif extra[1] in extras:
            wanted.append(_EXTRA.sub("", line))
    return tuple(wanted)


def _constraints(requirements: tuple[str, ...]) -> tuple[str, ...]:
    """Return the versions installed here of all that is needed, as far as it is installed."""
    found: dict[str, str] = {}
    waiting = [_name_of(line) for line in requirements]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            needed = distribution(name)
        except PackageNotFoundError:
            continue  # of another system, or of an extra
        # `2.13.0+cpu` is this machine's build; which one is right there, the index there knows.
        found[name] = needed.version.partition("+")[0]
        waiting += [_name_of(line) for line in needed.requires or () if "extra ==" not in line]
    return tuple(f"{name}=={found[name]}" for name in sorted(found))


def _name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0]).lower()

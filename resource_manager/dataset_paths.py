"""A dataset's path, as a person writes it, to a prefix in a store. Pure but for the local disk.

    …/quark/data/datasets/alpha           below the dataset root  → data/datasets/alpha/
    /Users/x/quark/data/datasets/alpha    another machine's path  → its longest suffix in the store
    s3://bucket/data/datasets/alpha       a URI is taken as it is → that store's folder or prefix

What the store holds is asked through `first_keys`, so that nothing here knows a client. Keys keep
case, blanks and Unicode form.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PureWindowsPath
from urllib.parse import unquote

import msgspec

from tools_utilities.errors import QuarkError, UsageError
from tools_utilities.redaction import refuse_signed

FirstKeys = Callable[[str, str, str], list[str]]
"""`(store_uri, prefix, start_after)` → the first few keys that begin with the literal prefix."""

_SCHEMES = ("s3", "gs", "az", "r2", "memory", "http", "https")
_UNLISTED = ("http", "https")
"""Servers that need not tell what lies below a prefix: the URI's own slash decides."""
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\|[^/]*\\[^/]*$")
_LAST = "\U0010ffff"  # sorts after every character that a key can hold
_SHOWN = 5


class DatasetPath(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dataset lies."""

    store_uri: str
    """`scheme://bucket`, or `file:///folder`."""
    prefix: str
    """Relative to the store; a folder when it ends in `/`, else a literal key prefix."""
    found_by: str
    """`dataset root`, `suffix`, `URI`: how the words became the prefix."""
    notes: tuple[str, ...] = ()
    """What the plan says about it."""


class PathContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where a path is read."""

    root: Path
    """Dataset root."""
    cwd: Path
    home: Path | None
    store_uri: str
    """The store that paths are mapped into: the configured bucket, or `file://<root>`."""
    first_keys: FirstKeys
    allow_root: bool = False
    """Accept the root itself (to look around in it), which stands for the whole bucket."""


def resolve_dataset_path(text: str, context: PathContext) -> DatasetPath:
    """Return the store and prefix that `text` means.

    Raises:
        UsageError: it is outside the dataset root and no suffix of it is in the store, it is the
            root itself, no store is known by its scheme, or a secret stands in it.
    """
    if not text or "\0" in text:
        raise UsageError(f"{text!r}: not a dataset path")
    refuse_signed(text, "a run")
    uri = _URI.fullmatch(text)
    try:
        return _from_path(text, context) if uri is None else _from_any_uri(uri, context)
    except QuarkError:
        raise  # a store's error is an OSError too
    except OSError as error:
        # Too long a name, a loop of links, a folder that may not be entered.
        raise UsageError(f"{text}: not a usable path: {error.strerror}") from error


# URIs.


def _from_any_uri(uri: re.Match[str], context: PathContext) -> DatasetPath:
    scheme = uri[1].lower()
    if scheme == "file":
        return _from_file_uri(uri[2], context)
    if scheme not in _SCHEMES:
        raise UsageError(
            f"{uri[0]}: datasets are not read from {scheme}://",
            hint=f"Known: file, {', '.join(_SCHEMES)}.",
        )
    return _from_uri(scheme, uri[2], context)


def _from_uri(scheme: str, rest: str, context: PathContext) -> DatasetPath:
    bucket, _, prefix = rest.partition("/")
    store_uri = f"{scheme}://{bucket}"
    if not bucket:
        raise UsageError(f"{scheme}://{rest}: no bucket", hint=f"Write {scheme}://BUCKET/PREFIX/.")
    notes: tuple[str, ...] = ()
    if store_uri != context.store_uri and not context.store_uri.startswith("file://"):
        notes = (f"reads from {store_uri}, not from the configured {context.store_uri}",)
    if scheme in _UNLISTED:
        return DatasetPath(store_uri=store_uri, prefix=prefix, found_by="URI", notes=notes)
    return _folder_or_literal(store_uri, prefix, notes, context)


def _folder_or_literal(
    store_uri: str, prefix: str, notes: tuple[str, ...], context: PathContext
) -> DatasetPath:
    """Return the folder `prefix/` if any key lies below it, else the literal prefix."""
    found_by = "URI"
    if prefix and not prefix.endswith("/"):
        below = context.first_keys(store_uri, f"{prefix}/", "")
        beside = _beside(store_uri, prefix, context)
        if below or not beside:
            if beside:
                notes = (*notes, _both(prefix, below, beside))
            prefix += "/"
        else:
            notes = (*notes, f"{prefix} is no folder: every key that begins with it is read")
    return DatasetPath(store_uri=store_uri, prefix=prefix, found_by=found_by, notes=notes)


def _beside(store_uri: str, prefix: str, context: PathContext) -> list[str]:
    """Return the first keys that begin with `prefix` and do not lie in the folder `prefix/`."""
    folder = f"{prefix}/"
    before = context.first_keys(store_uri, prefix, "")
    after = context.first_keys(store_uri, prefix, folder + _LAST)
    keys = dict.fromkeys([*before, *after])
    return [key for key in keys if not key.startswith(folder)]


def _both(prefix: str, below: list[str], beside: list[str]) -> str:
    return (
        f"{prefix} is a folder ({_some(below)}) and also begins other names ({_some(beside)}); "
        "the folder is read"
    )


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:_SHOWN]) + (", …" if len(keys) > _SHOWN else "")


def _from_file_uri(rest: str, context: PathContext) -> DatasetPath:
    """Return a folder of this machine, read in place: relative to the root where it lies below it."""
    text = rest.removeprefix("localhost") if rest.startswith("localhost/") else rest
    if not text.startswith("/"):
        raise UsageError(f"file://{rest}: not an absolute path", hint="Write file:///FOLDER/.")
    path = Path(text) if Path(text).exists() else Path(unquote(text))
    real = path.resolve()
    root = context.root.resolve()
    base = root if real.is_relative_to(root) and real != root else real.parent
    if real == root and not context.allow_root:
        raise _is_root(f"file://{rest}", root)
    name = real.relative_to(base).as_posix()
    prefix = "" if name == "." else name + ("" if real.is_file() else "/")
    return DatasetPath(store_uri=_file_uri(base), prefix=prefix, found_by="URI")


def _file_uri(folder: Path) -> str:
    return f"file://{folder}"


# Paths.


def _from_path(text: str, context: PathContext) -> DatasetPath:
    path = context.cwd / _expand(text, context.home)
    if _WINDOWS.match(text) and not path.exists():
        windows = PureWindowsPath(text)
        return _by_suffix(text, windows.relative_to(windows.anchor).parts, context)
    real = path.resolve()
    root = context.root.resolve()
    if real == root:
        return _whole_root(text, root, context)
    inside = real.is_relative_to(root)
    if not real.exists() and not Path(text).is_absolute() and not text.startswith("~"):
        found = _relative_to_root(text, real if inside else None, root, context)
        if found is not None:
            return found
    if inside:
        return _below_root(real, root, context)
    if real.exists() or path.is_symlink() or not (Path(text).is_absolute() or text[:1] == "~"):
        raise _outside(text, real, root)
    return _by_suffix(text, path.parts[1:], context)


def _expand(text: str, home: Path | None) -> Path:
    if text == "~" or text.startswith("~/"):
        if home is None:
            raise UsageError(f"{text}: HOME is not set, so ~ means nothing")
        return home / text[2:]
    return Path(text)


def _below_root(real: Path, root: Path, context: PathContext) -> DatasetPath:
    name = real.relative_to(root).as_posix()
    if real.is_file():
        return DatasetPath(
            store_uri=context.store_uri, prefix=name, found_by="dataset root",
            notes=(f"{name} is one file",),
        )  # fmt: skip
    notes = () if real.exists() else (_not_here(name, context),)
    return DatasetPath(
        store_uri=context.store_uri, prefix=f"{name}/", found_by="dataset root", notes=notes
    )


def _not_here(name: str, context: PathContext) -> str:
    return f"{name} is not on this machine; it is looked for in {context.store_uri}"


def _relative_to_root(
    text: str, in_cwd: Path | None, root: Path, context: PathContext
) -> DatasetPath | None:
    """Return what a relative path means that does not exist in the working directory.

    There first, where the store knows it; else from the dataset root, as documentation writes it.
    """
    if in_cwd is not None and _in_store(in_cwd.relative_to(root).as_posix(), context):
        return _below_root(in_cwd, root, context)
    from_root = (root / text).resolve()
    if not from_root.is_relative_to(root) or from_root == root:
        return None
    name = from_root.relative_to(root).as_posix()
    if not from_root.exists() and not _in_store(name, context):
        return None
    found = _below_root(from_root, root, context)
    note = f"{text} is read from the dataset root {root}"
    return msgspec.structs.replace(found, notes=(note, *found.notes))


def _in_store(name: str, context: PathContext) -> bool:
    return bool(context.first_keys(context.store_uri, f"{name}/", ""))


def _by_suffix(text: str, parts: tuple[str, ...], context: PathContext) -> DatasetPath:
    """Return the longest suffix of another machine's path that the store has."""
    for prefix in _suffixes(parts):
        if context.first_keys(context.store_uri, prefix, ""):
            return DatasetPath(
                store_uri=context.store_uri,
                prefix=prefix,
                found_by="suffix",
                notes=(f"{text} is not here; {prefix} is its longest end in {context.store_uri}",),
            )
    raise UsageError(
        f"{text} is not on this machine, not below the dataset root {context.root}, and no end of "
        f"it is a folder in {context.store_uri}",
        hint="Give a path below the dataset root, a URI, or --override train_prefix=PREFIX/.",
        path=text,
        root=str(context.root),
        store=context.store_uri,
    )


def _suffixes(parts: tuple[str, ...]) -> Iterator[str]:
    clean: list[str] = []
    for part in parts:
        if part == ".." and clean:
            clean.pop()
        elif part not in {"", ".", ".."}:
            clean.append(part)
    return ("/".join(clean[start:]) + "/" for start in range(len(clean)))


def _whole_root(text: str, root: Path, context: PathContext) -> DatasetPath:
    if not context.allow_root:
        raise _is_root(text, root)
    return DatasetPath(store_uri=context.store_uri, prefix="", found_by="dataset root")


def _is_root(text: str, root: Path) -> UsageError:
    return UsageError(
        f"{text} is the dataset root {root} itself, which stands for the whole bucket",
        hint="Name a folder below it; `quark discover` looks around in it.",
        path=text,
        root=str(root),
    )


def _outside(text: str, real: Path, root: Path) -> UsageError:
    meant = f" ({real})" if os.fspath(real) != text else ""
    return UsageError(
        f"{text}{meant} is outside the dataset root {root}",
        hint=f"Move it below the root, set --override root=FOLDER, or write file://{real}/.",
        path=text,
        root=str(root),
    )

"""The limit on open files: raised as far as this user may, once, at the start of a program."""

import errno

from tools_utilities.errors import StoreError


def is_open_file_limit(error: OSError) -> bool:
    """Tell whether a file could not be opened because too many are."""
    return error.errno in {errno.EMFILE, errno.ENFILE}


def check_open_files(error: OSError) -> None:
    """Let any other error pass.

    Raises:
        StoreError: no file could be opened any more; names the limit and what to read less of.
    """
    if not is_open_file_limit(error):
        return
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    whose = f"this process has all {soft} open that its limit allows"
    if error.errno == errno.ENFILE:
        whose = "this machine has as many open as it allows"
    raise StoreError(
        f"too many open files: {whose}",
        hint="Raise the limit (ulimit -n), or read less ahead: prefetch=2, or a smaller shuffle_mb.",
        limit=soft,
    ) from error


def are_scarce(fd: int) -> bool:
    """Tell, by the number of a file just opened (the lowest free), whether half of what may be open is."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft != resource.RLIM_INFINITY and fd >= soft // 2


def raise_open_file_limit() -> None:
    """Raise the soft limit to the hard one; where the system has no such limit, nothing happens.

    Shards are mapped and leased by open files, so the usual soft limit of 256 or 1,024 is soon met.
    """
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        return  # some systems name a hard limit that they do not grant; `doctor` shows the limit

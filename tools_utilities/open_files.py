"""The limit on open files: raised as far as this user may, once, at the start of a program."""


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

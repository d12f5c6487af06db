"""Settings of other systems that Quark has no use for: refused by name, with what is there instead."""

from tools_utilities.errors import UsageError

_TAKEOVER = (
    "Quark keeps no replicas of running work; it is taken over: a training run is started again "
    "with any number of ranks (resume=auto goes on at the exact sample), and in a batch job a lost "
    "worker's shard goes to another when its lease ends."
)

REFUSED_SETTINGS = {"fault_tolerance": _TAKEOVER, "replication_factor": _TAKEOVER}
"""Name → why there is no such setting, and what to do instead."""


def refuse_by_name(name: str) -> None:
    """Let any other name pass.

    Raises:
        UsageError: it is one of `REFUSED_SETTINGS`; the message says why there is no such setting.
    """
    if name in REFUSED_SETTINGS:
        raise UsageError(
            f"{name}: not a setting of Quark. {REFUSED_SETTINGS[name]}",
            hint="Leave it out; resume=auto, or leases in a batch job, do this without a setting.",
            key=name,
        )

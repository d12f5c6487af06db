"""From the words of `where` to the machine a job is launched on, and back. Pure."""

import re
from typing import Any

import msgspec

from brain.ml.training_job import Remote, RentalTerms
from tools_utilities.errors import InputNeededError, UsageError
from tools_utilities.settings import Settings

RENTED = ("gpu_type", "spot", "max_price_hour", "max_cost")
RENTAL_SETTINGS = {
    "gpu_type": "gpu_type",
    "gpus": "gpus",
    "spot": "spot",
    "max_price_hour": "max_price_hour",
    "max_cost": "max_cost",
    "rental_image": "image",
    "rental_disk_gb": "disk_gb",
}
"""Setting → field of `RentalTerms`."""
RENTED_ONLY = tuple(name for name in RENTAL_SETTINGS if name != "gpus")
VAST, SKY = "vast", "sky"
CLOUDS = ("aws", "gcp", "azure", "k8s", SKY)
"""Places that SkyPilot goes to; `sky` alone: wherever it is cheapest, `sky:INFRA` as SkyPilot writes it."""
KUBERNETES = "k8s"
REMOTE_SETTINGS = {
    "remote_python": "python",
    "remote_folder": "folder",
    "remote_packages": "packages",
    "remote_credentials": "credentials",
    "remote_env": "variables",
}
"""Setting → field of `Remote`."""
_ADDRESS = re.compile(r"(?:([^@:\s]+)@)?(\[[0-9A-Fa-f:.%]+\]|[^@:\s]+)(?::(\d{1,5}))?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class TermsNeededError(InputNeededError):
    """A machine is to be rented, and a figure is missing that nobody may guess; detail: setting."""


def is_cloud(where: str) -> bool:
    """Tell whether SkyPilot goes to a place."""
    return where.partition(":")[0] in CLOUDS


def infra_of(where: str) -> str | None:
    """Return a place as SkyPilot writes it; None: any."""
    name, _, said = where.partition(":")
    return (said or None) if name == SKY else name


def has_price(where: str) -> bool:
    """Tell whether anybody knows what an hour there costs: not of one's own Kubernetes."""
    return (infra_of(where) or "").partition("/")[0] not in (KUBERNETES, "kubernetes", "ssh")


class SshAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where ssh connects to: a host of the user's ssh config, or `user@host:port`."""

    destination: str
    """What ssh takes as its destination."""
    port: int | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """What goes to ssh behind its options; nothing of it can be taken for an option."""
        port = () if self.port is None else ("-p", str(self.port))
        return (*port, "--", self.destination)


def ssh_address(where: str) -> SshAddress:
    """Return the address in `ssh:HOST`.

    Raises:
        UsageError: it is none.
    """
    text = where.removeprefix("ssh:")
    found = _ADDRESS.fullmatch(text)
    if found is None or text.startswith("-"):
        raise UsageError(
            f"where={where}: not an ssh host",
            hint="Write ssh:HOST as in your ssh config, or ssh:user@host:port.",
        )
    user, host, port = found.groups()
    host = host.strip("[]")
    return SshAddress(
        destination=f"{user}@{host}" if user else host, port=int(port) if port else None
    )


def remote_of(settings: Settings) -> Remote | None:
    """Return the machine that the settings name; None: this one.

    Raises:
        UsageError: a place that cannot be launched on, or what only rented machines have.
        TermsNeededError: a machine is to be rented, and nobody said what it may cost.
    """
    where = str(settings.value("where") or "local")
    if where not in ("local", VAST) and not where.startswith("ssh:") and not is_cloud(where):
        raise UsageError(
            f"where={where}: `local`, `ssh:HOST`, `vast`, {', '.join(CLOUDS)} can be launched on",
            hint="A machine that you have rented yourself is an ssh host: on ssh host NAME. For a"
            " scheduler: quark export … for slurm.",
        )
    rents = where == VAST or is_cloud(where)
    said = [
        name for name in RENTED if settings.value(name) is not None and _is_said(settings, name)
    ]
    if said and not rents:
        whose = "this machine" if where == "local" else where
        raise UsageError(
            f"{', '.join(said)}: only rented machines have that",
            hint=f"Leave it out: this run starts on {whose}.",
        )
    if where == "local":
        return None
    terms = _terms_of(settings, where) if rents else None
    if terms is None:
        ssh_address(where)
    fields: dict[str, Any] = {
        field: settings.value(name) for name, field in REMOTE_SETTINGS.items()
    }
    fields["variables"] = tuple(fields["variables"] or ())
    for name in fields["variables"]:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"remote_env: {name!r} is not the name of a variable",
                hint="Name variables, never values: they are read from this environment.",
            )
    if not is_cloud(where):
        _check_one_node(settings, where)
    elif settings.value("rendezvous"):
        raise UsageError(
            f"where={where}: its nodes meet on the first of them", hint="Leave rendezvous out."
        )
    return Remote(where=where, terms=terms, **fields)


def _is_said(settings: Settings, name: str) -> bool:
    """Whether somebody says it for this launch: what an earlier one of the run had is no mistake."""
    return settings.is_set(name) and not settings.source(name).startswith("run ")


def _terms_of(settings: Settings, where: str) -> RentalTerms:
    """Return what a machine is rented for.

    Raises:
        TermsNeededError: neither is there a default for what somebody's money may be spent on.
    """
    fields = {field: settings.value(name) for name, field in RENTAL_SETTINGS.items()}
    # A cloud's machine has GPUs only where somebody says which.
    least = 0 if is_cloud(where) and fields["gpu_type"] is None else 1
    on_cpu = is_cloud(where) and settings.value("device") == "cpu"
    asked = 0 if on_cpu else fields["gpus"] or least
    fields |= {"gpus": asked, "spot": bool(fields["spot"])}
    priced = has_price(where)
    if priced and fields["max_price_hour"] is None:
        raise TermsNeededError(
            f"where={where}: nobody said what the machine may cost an hour",
            hint="Say it: … under $2 an hour (or --override max_price_hour=2).",
            setting="max_price_hour",
        )
    if settings.value("max_seconds") is None and not (priced and fields["max_cost"] is not None):
        _refuse_endless(where, priced=priced)
    if is_cloud(where) and asked and fields["gpu_type"] is None:
        raise InputNeededError(
            f"where={where}: nobody said which GPUs",
            hint=f"Say which: with {asked} a100s; or on cpu.",
        )
    return RentalTerms(**fields)


def _refuse_endless(where: str, *, priced: bool) -> None:
    if not priced:
        raise InputNeededError(
            f"where={where}: nobody said when it ends, and no price an hour is known there",
            hint="Say it: … for 3 hours (or --override max_seconds=10800).",
        )
    raise TermsNeededError(
        f"where={where}: nobody said what ends the renting",
        hint="Say it: … stop after $15 (or --override max_cost=15), or … for 3 hours.",
        setting="max_cost",
    )


def _check_one_node(settings: Settings, where: str) -> None:
    if settings.value("nodes") > 1 or settings.value("rendezvous"):
        raise UsageError(
            f"where={where}: a run there is one node; nodes={settings.value('nodes')} is not",
            hint="Leave nodes and rendezvous out, or use gpus=N for the GPUs of that machine.",
        )


def usual_cache(remote: Remote) -> str:
    """Return the cache folder of runs there, where nobody names another."""
    return f"{remote.folder}/cache"


def settings_of_remote(remote: Remote | None) -> dict[str, Any]:
    """Return the settings that name a machine; the reverse of `remote_of`."""
    if remote is None:
        return {"where": "local"}
    fields = {name: getattr(remote, field) for name, field in REMOTE_SETTINGS.items()}
    fields["remote_env"] = list(fields["remote_env"]) or None
    if remote.terms is not None:
        fields |= {name: getattr(remote.terms, field) for name, field in RENTAL_SETTINGS.items()}
    return {"where": remote.where, **fields}


def changed_place(remote: Remote | None, other: Remote | None) -> tuple[str, ...]:
    """Return `name: before → now` for each setting in which a place differs from an earlier `other`."""
    now, before = settings_of_remote(remote), settings_of_remote(other)
    # Of another machine the rest is another one's too.
    names = ("where",) if now["where"] != before["where"] else tuple(now)
    return tuple(
        f"{name}: {before.get(name)} → {now[name]}"
        for name in names
        if now[name] != before.get(name)
    )

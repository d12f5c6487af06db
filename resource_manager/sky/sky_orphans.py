"""Runs on SkyPilot of which it is not known that nothing is left: for `doctor`. Asks nobody."""

from pathlib import Path

from resource_manager.doctor import Check
from resource_manager.remote_settings import is_cloud
from resource_manager.rental.rental_record import UNPROVEN, read_rental
from resource_manager.runs import run_dirs_of

NAME = "sky"


def check_launched(out_dir: Path) -> Check | None:
    """Return what was launched and not shown to be gone; None: nothing was ever launched."""
    records = [record for path in run_dirs_of(out_dir) if (record := read_rental(path)) is not None]
    ours = [record for record in records if is_cloud(record.where)]
    if not ours:
        return None
    unproven = [record for record in ours if record.state == UNPROVEN]
    going = [record for record in ours if not record.is_over and record.state != UNPROVEN]
    if not unproven:
        return Check(name=NAME, state="ok", found=f"{len(going)} runs on SkyPilot that go on")
    typed = [
        f"sky jobs cancel --yes --name {one.label}"
        if one.managed
        else f"sky down --yes {one.label}"
        for one in unproven
    ]
    return Check(
        name=NAME,
        state="warn",
        found=f"may still be there: {', '.join(one.label for one in unproven)}",
        fix=f"`quark list` tries again; or type: {' && '.join(typed)}",
    )

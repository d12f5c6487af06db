"""Sets a Quark up on another machine: an environment with what it needs, and its code; once for each content."""

import hashlib
import io
from collections.abc import Callable

from resource_manager.quark_wheel import Wheel
from resource_manager.remote_host import RemoteHost


def installed(host: RemoteHost, wheel: Wheel, tell: Callable[[str], None]) -> tuple[str, str]:
    """Return the Python and the code folder there, made if they are not there yet.

    Raises:
        MachineError: it cannot be installed, or the machine is out of reach.
    """
    remote = host.remote
    requirements = "\n".join(wheel.requirements) + "\n"
    pins = "\n".join(wheel.constraints) + "\n" if remote.packages == "install" else ""
    parts = repr((remote.packages, remote.python, requirements, pins))
    key = hashlib.sha256(parts.encode()).hexdigest()[:16]
    if not host.ask("has", path=f"environments/{key}/complete")[0]["has"]:
        tell(f"{remote.where}: installing packages; the first time this takes minutes")
    made, _ = host.ask(
        "install", requirements.encode(), key=key, mode=remote.packages, constraints=pins
    )
    there = f"wheels/{wheel.sha256[:16]}/{wheel.file_name}"
    if not host.ask("has", path=there)[0]["has"]:
        host.put(there, io.BytesIO(wheel.data), mode=0o644)
    unpacked, _ = host.ask("unpack", wheel=there, key=wheel.sha256[:16], python=made["python"])
    return made["python"], unpacked["code"]

"""`quark-bridge` as it is installed: the bridge's program, and what it rents machines with."""

import sys
from collections.abc import Sequence
from typing import Any

from tools_utilities.bridge.bridge_settings import BridgeSettings
from tools_utilities.bridge.program import main as run_bridge
from tools_utilities.console import make_console


class _Renter:
    """Loads what renting needs when somebody rents."""

    def plan_lines(self, settings: BridgeSettings, prefix: str | None) -> list[str]:
        from resource_manager.bridge_renting import VastRenter

        return VastRenter(make_console()).plan_lines(settings, prefix)

    def run(self, settings: BridgeSettings, prefix: str | None) -> dict[str, Any] | None:
        from resource_manager.bridge_renting import VastRenter

        return VastRenter(make_console()).run(settings, prefix)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of the bridge; returns the exit code."""
    return run_bridge(arguments, renter=_Renter())


if __name__ == "__main__":
    sys.exit(main())

"""What `simulate` is told beside a run's own settings: a link, a step, and data that is only described."""

from tools_utilities.setting_key import SettingKey
from tools_utilities.setting_key import plain_key as _key

SIMULATION_KEYS: tuple[SettingKey, ...] = (
    _key(
        "latency_ms", "float", "Simulated: to the first byte of an answer.", default=20.0, minimum=0
    ),
    _key(
        "connection_mb_s",
        "float",
        "Simulated: MB/s of one connection.",
        default=50.0,
        minimum=0,
        exclusive=True,
    ),
    _key(
        "node_mb_s",
        "float",
        "Simulated: MB/s of all connections of a machine.",
        default=1250.0,
        minimum=0,
        exclusive=True,
    ),
    _key(
        "step_ms",
        "float",
        "Simulated: a step whose data is there; unset: as in a run like it.",
        minimum=0,
        exclusive=True,
    ),
    _key("data_shards", "int", "Simulated: shards of data that is only described.", minimum=1),
    _key("data_samples", "int", "Simulated: its samples.", minimum=1),
    _key("data_gb", "float", "Simulated: its GB (10^9).", minimum=0, exclusive=True),
)

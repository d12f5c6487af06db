"""Where a run is: settings of this and of other machines; part of the table in `setting_keys.py`."""

from tools_utilities.setting_key import SettingKey
from tools_utilities.setting_key import plain_key as _key
from tools_utilities.setting_key import slot_key as _slot

REMOTE_KEYS: tuple[SettingKey, ...] = (
    _slot(
        "where",
        "text",
        "Where to run: local, ssh:HOST, vast, aws, gcp, azure, k8s or sky:INFRA.",
        default="local",
    ),
    _slot("gpu_type", "text", "GPU model to rent."),
    _slot("spot", "bool", "Rent interruptible machines."),
    _slot(
        "max_price_hour", "float", "Highest price an hour, in dollars.", minimum=0, exclusive=True
    ),
    _slot("max_cost", "float", "Most the run may cost, in dollars.", minimum=0, exclusive=True),
    _key(
        "rental_image",
        "text",
        "Image that a rented machine starts with.",
        default="vastai/pytorch:@vastai-automatic-tag",
    ),
    _key(
        "rental_disk_gb",
        "float",
        "Disk of a rented machine, in GB (10^9).",
        default=50.0,
        minimum=10,
    ),
    _key("remote_python", "text", "Python on the other machine.", default="python3"),
    _key("remote_folder", "text", "Quark's own folder on the other machine.", default="~/.quark"),
    _key(
        "remote_packages",
        "choice",
        "Over there: install every package, or inherit what its Python has.",
        default="install",
        choices=("install", "inherit"),
    ),
    _key(
        "remote_credentials",
        "choice",
        "Send the stores' credentials, an AWS session made for the run, or none (it has its own).",
        default="send",
        choices=("send", "session", "none"),
    ),
    _key("remote_env", "texts", "Names of further variables to send: WANDB_API_KEY,HF_HOME."),
)

"""The data bridge: a source, cut into shards, in a bucket, with a manifest; from one file of settings.

from tools_utilities.bridge import run_pipeline, run_from_file, load_settings
"""

from tools_utilities.bridge.bridge_settings import BridgeSettings, load_settings
from tools_utilities.bridge.pipelines import run_from_file, run_pipeline

__all__ = ["BridgeSettings", "load_settings", "run_from_file", "run_pipeline"]

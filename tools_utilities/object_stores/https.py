"""Objects on a web server: `https://host/…`, read-only; see `_web.py`."""

from tools_utilities.object_store import StoreScheme
from tools_utilities.object_stores._web import WebScheme

STORE_SCHEME: StoreScheme = WebScheme("https")

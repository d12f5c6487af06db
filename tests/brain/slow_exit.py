"""A module whose process takes half a minute to end by itself, as one with torch may take seconds."""

import atexit
import time

atexit.register(time.sleep, 30)

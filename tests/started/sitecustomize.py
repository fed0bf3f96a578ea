"""Run at the start of every Python that a test starts: importing torch makes no garbage, and an end leaves none behind.

The collector would look through all that is imported again and again, at the end too: two fifths of a short process.
"""

import atexit
import gc

gc.set_threshold(100_000, 10, 10)
atexit.register(gc.freeze)

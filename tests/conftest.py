"""The tests run on the CPU unless the caller chooses a platform."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

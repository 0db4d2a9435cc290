"""Run by test_windows: sliding windows on four devices are those on one."""

import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", 4)

from lm.windows import Protocol  # noqa: E402
from tests.lm import test_windows  # noqa: E402

tokens, protocol = test_windows.text(30), Protocol(test_windows.WINDOW)
expected = test_windows.all_losses(tokens, protocol, 4, num_devices=1)
found = test_windows.all_losses(tokens, protocol, 8, num_devices=4)
assert found[0] == expected[0]
np.testing.assert_allclose(found[1], expected[1], atol=1e-5)

"""What the processes of a run tell each other."""

import jax
import numpy as np
from jax.experimental import multihost_utils

MOST_BYTES = 1 << 14  # of a text; what is longer is cut


def from_first(text: str) -> str:
  """The text of the first process, in all of them; each has to call this, and waits for the others."""
  if jax.process_count() == 1:
    return text
  content = np.frombuffer(text.encode()[:MOST_BYTES], np.uint8)
  message = np.zeros(MOST_BYTES, np.uint8)
  message[: len(content)] = content
  shared = multihost_utils.broadcast_one_to_all(message)
  return np.asarray(shared, np.uint8).tobytes().rstrip(b"\0").decode(errors="ignore")

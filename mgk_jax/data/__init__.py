"""What the programs share of their data: archives, downloads, faults of raw data, places of prepared data."""

from mgk_jax.data.errors import DataError as DataError

"""What is wrong with data, for the user."""


class DataError(Exception):
  """Raw or prepared data that are missing, incomplete or unreadable; the message says what to do."""

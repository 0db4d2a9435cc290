"""The tasks of the Long Range Arena by their names."""

from pathlib import Path

import ml_collections

from lra.builder import TaskBuilder
from lra.image import LraImage
from lra.listops import ListopsConfig, LraListops
from lra.pathfinder32 import LraPathfinder32
from lra.retrieval import LraRetrieval
from lra.text import LraText

TASKS: dict[str, type[TaskBuilder]] = {
  builder.task.name: builder for builder in (LraListops, LraText, LraRetrieval, LraImage, LraPathfinder32)
}


def get(name: str) -> type[TaskBuilder]:
  """The builder of a task.

  Raises:
    ValueError: there is no task of that name; the message lists those that there are.
  """
  if name not in TASKS:
    raise ValueError(f"task: expected one of {', '.join(TASKS)}, got {name!r}")
  return TASKS[name]


def builder(
  config: ml_collections.ConfigDict, prepared_dir: str | Path | None = None, *, partial: bool = False
) -> TaskBuilder:
  """The builder of the data that a config of configs/lra asks for, below `prepared_dir`.

  Raises:
    ValueError: the config names an unknown task or has settings that are not allowed.
  """
  name = config.task
  settings = ListopsConfig(source=config.data.source, **config.data.get("generator", {})) if name == "listops" else None
  return get(name)(data_dir=prepared_dir, config=settings, partial=partial)

"""A first run: sMGK with one head and softmax with two learn to evaluate short ListOps expressions.

    python -m lra.quickstart

Both are trained from configs/lra/quickstart.py on the same expressions in the same order, each seen once, and tested on
expressions that neither has seen; it takes minutes on two CPU cores. Prints a table and a picture of both learning
curves, which is also drawn into the work directory. Arguments behind --set change both runs, e.g. --set=steps=300.
"""

from collections.abc import Sequence
from pathlib import Path

from configs.lra import quickstart
from lra import report, sweep
from mgk_jax import console, training
from mgk_jax.data import DataError

MODELS = {"smgk_heads1": "smgk,heads=1", "softmax_heads2": "softmax,heads=2"}


def main(argv: Sequence[str] | None = None) -> None:
  """The command."""
  parser = console.parser("lra.quickstart", __doc__)
  parser.add_argument("--workdir", type=Path, default=Path("runs/quickstart"), help="where both runs are written")
  parser.add_argument("--prepared_dir", help="where the generated data are kept")
  parser.add_argument("--set", default="", metavar="KEY=VALUE,…", help="arguments of configs/lra/quickstart.py")
  args = parser.parse_args(argv)
  with training.reported(DataError, ValueError, TypeError):
    runs = [(name, quickstart.get_config(",".join(filter(None, (m, args.set))))) for name, m in MODELS.items()]
    failed = sweep.sweep(runs, args.workdir, prepared_dir=args.prepared_dir)
    report.show(report.report([args.workdir / name for name, _ in runs], picture=args.workdir / "curves.png"))
    if failed:
      raise training.TrainingStopped(f"Not finished: {', '.join(failed)}")


if __name__ == "__main__":
  main()

"""The Long Range Arena program as one command: `mgk-lra COMMAND`, or `python -m lra COMMAND`."""

from configs.programs import Program

PROGRAM = Program(
  "lra",
  "Trains Transformers with mixtures of Gaussian keys, and their baselines, on the Long Range Arena.",
  {
    "quickstart": "a first run: two small models on short ListOps expressions, in minutes on a CPU",
    "prepare": "finds, checks and prepares the data of a task",
    "train": "trains by a config, from the start or from where it was stopped",
    "evaluate": "evaluates any split from any checkpoint of a run",
    "sweep": "runs a grid of variants, heads and seeds, and prints its table",
    "report": "table and learning curves of finished runs",
  },
  (
    "mgk-lra quickstart",
    "mgk-lra train --config=listops:smgk,heads=2 --workdir=runs/listops_smgk",
    "mgk-lra prepare text --data_dir=aclImdb_v1.tar.gz",
    "mgk-lra evaluate --workdir=runs/listops_smgk --split=valid",
    "mgk-lra sweep --config=listops --variants=softmax,mgk,smgk --heads=1,2,4 --seeds=0,1,2",
    "mgk-lra report runs/listops_smgk",
  ),
)
main = PROGRAM.run

if __name__ == "__main__":
  main()

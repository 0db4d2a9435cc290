"""The language-modelling program as one command: `mgk-lm COMMAND`, or `python -m lm COMMAND`."""

from configs.programs import Program

PROGRAM = Program(
  "lm",
  "Trains language models with mixtures of Gaussian keys, and their baselines.",
  {
    "prepare": "finds, checks and prepares a corpus",
    "train": "trains by a config, from the start or from where it was stopped",
    "evaluate": "perplexity of a run, by sliding windows or by segments",
    "generate": "writes text with a trained model",
    "report": "table and learning curves of finished runs",
  },
  (
    "mgk-lm prepare wikitext103 --data_dir=wikitext-103-v1.zip",
    "mgk-lm train --config=wikitext103:mgk,heads=4 --workdir=runs/wt103_mgk",
    "mgk-lm evaluate --workdir=runs/wt103_mgk --split=test",
    "mgk-lm generate --workdir=runs/wt103_mgk --prompt='The history of'",
    "mgk-lm report runs/wt103_mgk",
  ),
)
main = PROGRAM.run

if __name__ == "__main__":
  main()

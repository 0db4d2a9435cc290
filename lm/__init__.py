"""Language modelling: corpora, training, the perplexity of the paper's protocol, and generation."""

"""Train: data and model become a run: stages, steps, ranks, checkpoints, and its export."""

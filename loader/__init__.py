"""Read indexed WebDataset shards, alone or distributed over any number of ranks and workers."""

"""Train on several ranks, and resume on the same or another number of them.

torchrun --nproc-per-node 2 docs/examples/train_ddp.py DATASET CHECKPOINT [--global-batch 8] [--epochs 1]
torchrun --nproc-per-node 4 docs/examples/train_ddp.py DATASET CHECKPOINT      # goes on where 2 ranks stopped
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from loader import SampleDataset, ShardedDataLoader, gather_state


def keys_and_features(sample):
    """In the worker: the sample's key, and what the model wants of it."""
    return sample["__key__"], torch.tensor([float(len(sample[".json"]["caption"]))])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("checkpoint")
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--stop-after", type=int, default=0)
    parser.add_argument(
        "--record", default="", help="append the keys of each batch to this file, with the rank"
    )
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # One global batch for any number of ranks: then the sequence of global batches is the same, too.
    dataset = SampleDataset(options.dataset, extensions=[".json"], transform=keys_and_features)
    loader = ShardedDataLoader(dataset, options.global_batch // world_size, num_workers=1)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    step = 0

    if os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        loader.load_state_dict(saved["data"])
        step = saved["step"]

    while loader.epoch < options.epochs:
        for keys, features in loader:
            optimizer.zero_grad()
            model(features).mean().backward()  # ranks end together: no rank waits here for one that is done
            optimizer.step()
            step += 1
            if options.record:
                with open(options.record, "a") as log:
                    log.write(f"{step} {rank} {' '.join(keys)}\n")
            if step % 2 == 0:
                data = gather_state(loader)  # one state of all ranks, whatever was skipped where
                if rank == 0:
                    saved = {"model": model.module.state_dict(), "data": data, "step": step}
                    torch.save(saved, options.checkpoint + ".part")
                    os.replace(options.checkpoint + ".part", options.checkpoint)
            if step == options.stop_after:
                dist.destroy_process_group()
                return
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

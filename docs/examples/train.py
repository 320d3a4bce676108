"""Train on one device, and go on after a crash: run it again.

python docs/examples/train.py DATASET CHECKPOINT [--epochs 2] [--stop-after STEPS]
"""

import argparse
import os

import torch

from loader import SampleDataset, ShardedDataLoader


def to_tensor(sample):
    """In the worker: what the model wants of a sample, here the length of its caption."""
    return torch.tensor([float(len(sample[".json"]["caption"]))])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("checkpoint")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=0)
    options = parser.parse_args()

    dataset = SampleDataset(options.dataset, extensions=[".json"], transform=to_tensor)
    loader = ShardedDataLoader(dataset, batch_size=4, num_workers=2)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    step = 0

    if os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
        step = saved["step"]

    while loader.epoch < options.epochs:
        for batch in loader:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
            step += 1
            print(f"epoch {loader.epoch} step {step} samples {len(batch)} sum {batch.sum().item():.0f}")
            if step % 3 == 0:
                saved = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "data": loader.state_dict(),
                    "step": step,
                }
                torch.save(saved, options.checkpoint + ".part")
                os.replace(options.checkpoint + ".part", options.checkpoint)
            if step == options.stop_after:
                return


if __name__ == "__main__":
    main()

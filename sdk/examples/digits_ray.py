"""A multi-layer perceptron on handwritten digits in a TorchTrainer of Ray Train. The workers need no process group: each
is on a machine of the Ray cluster that has a gossamerd, and averages through that. What Gossamer adds is marked.
digits_ray.py [STEPS] [WORKERS]
"""

import sys
import tempfile
from pathlib import Path

import torch
from ray import train
from ray.train.torch import TorchTrainer
from torch import nn

import digits


def loop(config):
    import gossamer.torch as gossamer  # <- Gossamer

    images, labels, test_images, test_labels = (torch.tensor(array) for array in config["data"])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run = gossamer.attach(model, optimizer, job="digits-ray", samples_per_step=32)  # <- Gossamer
    for step in range(config["steps"]):
        batch = torch.randint(len(images), (32,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    run.finish()  # <- Gossamer: all workers have the same model then
    run.close()  # <- Gossamer
    with torch.no_grad():
        accuracy = (model(test_images).argmax(dim=1) == test_labels).float().mean()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder, "model.pt"))
        is_first = train.get_context().get_world_rank() == 0
        checkpoint = train.Checkpoint.from_directory(folder) if is_first else None
        train.report({"accuracy": float(accuracy)}, checkpoint=checkpoint)


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
workers = int(sys.argv[2]) if len(sys.argv) > 2 else 2
trainer = TorchTrainer(
    loop,
    train_loop_config={"steps": steps, "data": digits.load()},
    scaling_config=train.ScalingConfig(num_workers=workers),
)
print(f"accuracy {trainer.fit().metrics['accuracy']:.4f}")

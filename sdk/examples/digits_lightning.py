"""A multi-layer perceptron on handwritten digits with Lightning, one process on each machine; what Gossamer adds is marked.
digits_lightning.py [STEPS]
"""

import sys

import lightning.pytorch as lightning
import torch
from torch import nn

import digits
from gossamer.lightning import GossamerCallback  # <- Gossamer

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
images, labels, test_images, test_labels = (torch.from_numpy(array) for array in digits.load())
data = torch.utils.data.TensorDataset(images, labels)


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, index):
        inputs, targets = batch
        return nn.functional.cross_entropy(self.network(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=32 * steps)
trainer = lightning.Trainer(
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[GossamerCallback(job="digits-lightning", samples_per_step=32)],  # <- Gossamer
)
module = Digits()
trainer.fit(module, torch.utils.data.DataLoader(data, 32, sampler=sampler))
module.eval()
with torch.no_grad():
    accuracy = (module.network(test_images.to(module.device)).argmax(dim=1).cpu() == test_labels).float().mean()
print(f"accuracy {accuracy:.4f}")

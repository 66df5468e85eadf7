"""Jobs of the method "average" under Hugging Face's Trainer and Lightning's, between real daemons: as one process with all
data, with gradients clipped after they are averaged."""

import json
import os
import subprocess
import unittest
from typing import Any, List, Optional

from support import BUILD, JOB, PATIENCE_S, SystemTest, python_with, start_program

STEPS, ROWS, ACCUMULATED, CLIP = 12, 32, 2, 0.1
# Arguments: the framework; which part of the data; the number of parts; and the job, or nothing to train without
# Gossamer.
PROGRAM = f"""
import sys; sys.path.insert(0, {str(BUILD / "python")!r})
import json, logging, tempfile, torch, warnings
framework, part, parts, job = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
generator = torch.Generator().manual_seed(1)
rows = [{{"x": torch.randn(3, generator=generator), "labels": 5 * torch.randn(2, generator=generator)}} for _ in range({ROWS})]
rows = rows[part::parts]
batch = len(rows) // {ACCUMULATED}
options = dict(job=job, timeout_s={PATIENCE_S}, settings={{"method": "average", "average_members": parts}})
torch.manual_seed(1)

class Model(torch.nn.Linear):
    def forward(self, x, labels):
        output = super().forward(x)
        return {{"loss": (output - labels).square().mean(), "logits": output}}

def transformers(model):
    import transformers, gossamer.transformers
    callbacks = [gossamer.transformers.GossamerCallback(**options)] if job else []
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(dir=sys.argv[5]), num_train_epochs={STEPS}, per_device_train_batch_size=batch,
        gradient_accumulation_steps={ACCUMULATED}, learning_rate=0.1, max_grad_norm={CLIP}, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", logging_steps=1000)
    transformers.Trainer(model, arguments, train_dataset=rows, callbacks=callbacks).train()

def lightning(model):
    import lightning.pytorch, gossamer.lightning
    class Module(lightning.pytorch.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = model
        def training_step(self, batch, index):
            return self.inner(**batch)["loss"]
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)
    callbacks = [gossamer.lightning.GossamerCallback(samples_per_step=len(rows), **options)] if job else []
    trainer = lightning.pytorch.Trainer(
        max_epochs={STEPS}, accelerator="cpu", accumulate_grad_batches={ACCUMULATED}, gradient_clip_val={CLIP}, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks)
    trainer.fit(Module(), torch.utils.data.DataLoader(rows, batch_size=batch))

model = Model(3, 2)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    {{"transformers": transformers, "lightning": lightning}}[framework](model)
assert not any("has the method average" in str(one.message) for one in told)
print(json.dumps([model.weight.flatten().tolist(), model.bias.tolist()]), file=sys.stderr)
"""


class Trainers(SystemTest):
    def start(self, framework: str, part: int, parts: int, node: Optional[Any]) -> "subprocess.Popen[str]":
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        if node is not None:
            environment["GOSSAMER_SOCKET"] = str(node.client_socket)
        arguments = [framework, str(part), str(parts), JOB if node is not None else "", str(self.folder)]
        return start_program(
            self,
            [python_with("torch", framework), "-c", PROGRAM, *arguments],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )

    def model(self, program: "subprocess.Popen[str]") -> List[List[float]]:
        said = program.communicate(timeout=4 * PATIENCE_S)[1]
        self.assertEqual(program.returncode, 0, said)
        return json.loads(said.splitlines()[-1])

    def check(self, framework: str) -> None:
        nodes = self.start_nodes(2)
        alone = self.model(self.start(framework, 0, 1, None))
        first, second = [self.model(one) for one in [self.start(framework, part, 2, nodes[part]) for part in range(2)]]
        self.assertEqual(first, second)
        for mine, expected in zip(sum(first, []), sum(alone, [])):
            self.assertAlmostEqual(mine, expected, delta=2e-4)

    def test_transformers(self) -> None:
        self.check("transformers")

    def test_lightning(self) -> None:
        self.check("lightning")


if __name__ == "__main__":
    unittest.main()

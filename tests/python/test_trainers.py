"""The callbacks for Hugging Face's Trainer and for Lightning's, with a fake daemon. Skipped, and saying so, without
them."""

import logging
import os
import sys
import tempfile
import unittest
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")
reasons = []
try:
    import torch
    import transformers

    import gossamer.transformers
except Exception as error:  # a version that is too old may raise anything
    transformers = None
    reasons.append(f"Transformers cannot be imported ({error})")
try:
    import lightning.pytorch

    import gossamer.lightning
except Exception as error:
    lightning = None
    reasons.append(f"Lightning cannot be imported ({error})")
if transformers is None and lightning is None:
    print(f"SKIPPED: {'; '.join(reasons)}; pip install transformers accelerate lightning", file=sys.stderr)
    sys.exit(77)  # CTest: skipped

import gossamer
from contract_daemon import NOWHERE, ContractDaemon

ELEMENTS = 3 * 2 + 2
# Four optimiser steps, each over two batches of 8.
ROWS, BATCH, ACCUMULATED = 64, 8, 2


def rows():
    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(3, generator=generator), "labels": torch.zeros(2)} for _ in range(ROWS)]


class Adapter:
    """The part that both have. `train` trains a model with the callback, and calls `before_step(n)` before each
    step."""

    def test_corrections_reach_the_model_and_clocks_count_steps(self):
        clocks = []
        with ContractDaemon() as daemon:
            ours = self.callback(job="test", socket=daemon.path, **self.samples)

            def before_step(step):
                clocks.append(ours.run.clock)
                if step == 2:
                    daemon.client().make_due([0.5] * ELEMENTS)

            before, after = self.train(ours, before_step, rate=0.0)
            self.assertTrue(torch.allclose(before + 0.5, after))
            self.assertEqual(clocks, [0, 16, 32, 48])
            self.assertTrue(ours.run.closed)
            self.assertEqual(daemon.client().publication(6), after.flatten().tolist())

    def test_a_training_that_failed_is_no_replica_beside_the_next(self):
        def fail(step):
            if step == 2:
                raise ArithmeticError

        with ContractDaemon() as daemon:
            first, second = (self.callback(job="test", socket=daemon.path, **self.samples) for _ in range(2))
            try:
                self.train(first, fail, rate=0.0)
            except ArithmeticError as error:
                kept = error  # a notebook keeps the last exception, too
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                self.train(second, lambda step: self.assertTrue(first.run.closed), rate=0.0)
            said = [one for one in told if "a training of the job 'test' has ended without closing" in str(one.message)]
            self.assertEqual(len(said), 1 if self.leaves_open else 0)
            self.assertIsNotNone(kept)

    def test_what_is_refused_ends_the_training(self):
        with self.assertRaisesRegex(gossamer.GossamerError, "job needs a name"):
            self.train(self.callback(job="no name", socket=NOWHERE, wait=False), lambda step: None, rate=0.0)
        with self.assertRaisesRegex(gossamer.GossamerError, "samples_per_step must be a whole number from 1"):
            self.callback(job="test", samples_per_step=0)


@unittest.skipUnless(transformers, "; ".join(reasons))
class Transformers(Adapter, unittest.TestCase):
    samples = {}  # options that the trainer knows by itself
    leaves_open = True  # nobody tells a callback that the training has failed

    def callback(self, **options):
        return gossamer.transformers.GossamerCallback(**options)

    def train(self, ours, before_step, rate):
        class Model(torch.nn.Linear):
            def forward(self, x, labels):
                output = super().forward(x)
                return {"loss": (output - labels).square().mean(), "logits": output}

        class Before(transformers.TrainerCallback):
            def on_step_begin(self, args, state, control, **_):
                before_step(state.global_step)

        torch.manual_seed(1)
        model = Model(3, 2)
        before = model.weight.detach().clone()
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder, num_train_epochs=1, per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATED,
                learning_rate=rate, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_steps=1000,
            )
            transformers.Trainer(model, arguments, train_dataset=rows(), callbacks=[Before(), ours]).train()
        return before, model.weight.detach()


@unittest.skipUnless(lightning, "; ".join(reasons))
class Lightning(Adapter, unittest.TestCase):
    samples = {"samples_per_step": BATCH * ACCUMULATED}
    leaves_open = False

    def callback(self, **options):
        return gossamer.lightning.GossamerCallback(**options)

    def train(self, ours, before_step, rate):
        class Module(lightning.pytorch.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 2)

            def training_step(self, batch, index):
                return (self.layer(batch["x"]) - batch["labels"]).square().mean()

            def on_train_batch_start(self, batch, index):
                if index % ACCUMULATED == 0:
                    before_step(index // ACCUMULATED)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=rate)

        torch.manual_seed(1)
        module = Module()
        before = module.layer.weight.detach().clone()
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        trainer = lightning.pytorch.Trainer(
            max_epochs=1, accelerator="cpu", accumulate_grad_batches=ACCUMULATED, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[ours],
        )
        trainer.fit(module, torch.utils.data.DataLoader(rows(), batch_size=BATCH))
        return before, module.layer.weight.detach()


if __name__ == "__main__":
    unittest.main()

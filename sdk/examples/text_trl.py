"""Supervised fine-tuning with TRL's SFTTrainer: a small GPT-2 on the licences in /usr/share/common-licenses, a token for
each byte, one process on each machine; what Gossamer adds is marked. text_trl.py [STEPS]
"""

import sys
import tempfile
from pathlib import Path

import datasets
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from gossamer.transformers import GossamerCallback  # <- Gossamer

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
text = "\n".join(Path("/usr/share/common-licenses", name).read_text() for name in ("GPL-3", "LGPL-2.1", "GFDL-1.3"))
pieces = datasets.Dataset.from_dict({"text": [text[at : at + 64] for at in range(0, len(text) - 64, 64)]})

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
words = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(["<end>", *alphabet])}, []))
words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
words.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")
model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=128, n_embd=64, n_layer=2, n_head=2))

arguments = SFTConfig(
    tempfile.mkdtemp(),
    max_steps=steps,
    per_device_train_batch_size=16,
    learning_rate=3e-3,
    seed=int(torch.seed() % 2**32),  # not the same everywhere, so that machines draw different batches
    max_length=80,
    packing=False,
    bf16=False,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
held_out, pieces = pieces.select(range(64)), pieces.select(range(64, len(pieces)))
trainer = SFTTrainer(
    model,
    arguments,
    train_dataset=pieces,
    eval_dataset=held_out,
    processing_class=tokenizer,
    callbacks=[GossamerCallback(job="text-trl")],  # <- Gossamer
)
trainer.train()
print(f"loss {trainer.evaluate()['eval_loss']:.4f}")

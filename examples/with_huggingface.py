"""Hugging Face: a small BERT and a small ViT with random weights, trained together by a balanced Trainer."""

import tempfile

import numpy as np
import torch
from torch.utils.data import default_collate
from transformers import EvalPrediction, TrainingArguments, set_seed
from transformers.utils import logging

from equipoise import MIMO, LateFusion, layerwise
from equipoise.integrations.huggingface import BalancedTrainer
from equipoise.integrations.transformers import Text, image

logging.set_verbosity_error()
set_seed(0)
torch.set_num_threads(1)


def made_up(count: int) -> list[dict]:
    """Three classes. Half the words of a text give its class away; the picture shows it as a bright row, faintly."""
    labels = torch.randint(3, (count,))
    clear = torch.rand(count, 6) < 0.5
    words = torch.where(clear, 10 + 30 * labels[:, None], 1) + torch.randint(30, (count, 6))
    pictures = torch.randn(count, 1, 7, 7)
    pictures[torch.arange(count), 0, 2 * labels + 1] += 1.5
    return [
        {"inputs": {"text": words[row], "image": pictures[row]}, "labels": labels[row].item()} for row in range(count)
    ]


def accuracies(found: EvalPrediction) -> dict[str, float]:
    outputs = zip(("fused", "text", "image"), found.predictions, strict=True)
    return {f"{name}_accuracy": float(np.mean(logits.argmax(1) == found.label_ids)) for name, logits in outputs}


model = LateFusion({"text": Text(features=32), "image": image((1, 7, 7), features=32)}, classes=3)
# Encoders that were trained before learn more slowly the deeper a layer lies; AdamW as usual.
optimizer = torch.optim.AdamW(layerwise(model, lr=3e-3, decay=0.8), weight_decay=0.05)
with tempfile.TemporaryDirectory() as folder:
    trainer = BalancedTrainer(
        model,
        TrainingArguments(
            output_dir=folder,
            num_train_epochs=3,
            per_device_train_batch_size=20,
            per_device_eval_batch_size=50,
            eval_strategy="epoch",
            save_strategy="no",
            logging_steps=10,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        balancer=MIMO(penalty=4.0, smoothing=0.1),
        data_collator=default_collate,
        train_dataset=made_up(200),
        eval_dataset=made_up(100),
        compute_metrics=accuracies,
        optimizers=(optimizer, None),
    )
    trainer.train()
print(trainer.balancer.table)
print({name: f"{100 * value:.1f} %" for name, value in trainer.evaluate().items() if name.endswith("accuracy")})

"""A model and the data of vitkit in the Trainer of Hugging Face (pip install transformers accelerate).

python examples/huggingface_trainer.py [DATA] [STEPS] [SIZE]     (SIZE: pixels, a multiple of 4)
"""

import sys
import tempfile

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import vitkit


class WithLoss(nn.Module):
    """The Trainer calls a model with the columns of a batch, and takes its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.model(pixel_values)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def collate(rows: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    images, labels = zip(*rows, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.stack(labels)}


def main(data: str = "digits", steps: str = "150", size: str = "8") -> None:
    pixels = int(size)
    train = vitkit.ImageDataset(data, "train", size=pixels)
    model = vitkit.create_model(f"ViT-32x2x2/{pixels // 4}", len(train.class_names), image_size=pixels)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=WithLoss(model),
            args=TrainingArguments(
                output_dir=folder,
                max_steps=int(steps),
                per_device_train_batch_size=64,
                learning_rate=3e-3,
                remove_unused_columns=False,  # rows are tuples, in which it would find no columns
                report_to=[],
                disable_tqdm=True,
                seed=0,
            ),
            data_collator=collate,
            train_dataset=train,
            eval_dataset=vitkit.ImageDataset(data, "test", model=model),
            compute_metrics=lambda predicted: {
                "accuracy": float(np.mean(predicted.predictions.argmax(-1) == predicted.label_ids))
            },
        )
        trainer.train()
        print(f"accuracy {trainer.evaluate()['eval_accuracy']:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])

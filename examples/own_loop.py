"""A model and the data of vitkit in a training loop of one's own.

python examples/own_loop.py [DATA] [STEPS] [SIZE]     (SIZE: pixels, a multiple of 4)
"""

import sys

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import vitkit


def main(data: str = "digits", steps: str = "120", size: str = "8") -> None:
    torch.manual_seed(0)
    pixels = int(size)
    train = vitkit.ImageDataset(data, "train", size=pixels)
    classes = len(train.class_names)
    # In place of new weights: vitkit.load_model("runs/start", num_classes=classes), or
    # vitkit.create_model("vit_tiny_patch16_224", pretrained=True, num_classes=classes).
    model = vitkit.create_model(f"ViT-32x2x2/{pixels // 4}", num_classes=classes, image_size=pixels)
    test = vitkit.ImageDataset(data, "test", model=model)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    loader = DataLoader(train, batch_size=64, shuffle=True)
    step = 0
    while step < int(steps):
        for images, labels in loader:  # (B, C, H, W) uint8, which the model normalises; (B,)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == int(steps):
                break

    model.eval()
    with torch.inference_mode():
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in DataLoader(test, 64))
    print(f"accuracy {right / len(test):.3f} on {len(test)} images")
    print(vitkit.Predictor(model, class_names=train.class_names)(test[0][0], top=1))


if __name__ == "__main__":
    main(*sys.argv[1:])

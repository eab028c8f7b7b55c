"""The reference job in PyTorch and timm, as one would write it plainly; started by benchmarks.reference_job.

It needs an environment with torch and timm and imports nothing of this project: images are decoded by Pillow in two worker
processes, as in timm's own scripts; AdamW; autocast to bfloat16 where that is faster. A GPU is used if there is one.
"""

import json
import sys
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

MODELS = ("mobilenetv2_100", "mobilenetv2_050")


class Photos(Dataset):
    """JPEG files of a folder with their labels, resized, as float32 (3, H, W) in -1..1."""

    def __init__(self, files: list[Path], labels: np.ndarray, size: int, flip: bool) -> None:
        self.files, self.labels, self.size, self.flip = files, labels, size, flip

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, n: int) -> tuple[torch.Tensor, int]:
        image = Image.open(self.files[n]).convert("RGB")
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size))
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 127.5 - 1.0
        return pixels.flip(2) if self.flip and torch.rand(()) < 0.5 else pixels, int(self.labels[n])


def main() -> None:
    setup = json.loads(sys.argv[1])
    folder, size, batch = Path(setup["folder"]), setup["size"], setup["batch"]
    labels, fold = np.array(setup["labels"]), np.array(setup["fold"])
    files = [folder / name for name in setup["files"]]
    classes = int(labels.max()) + 1
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if setup["bfloat16"] else None
    probs = np.zeros((len(files), classes))

    def loader(rows: np.ndarray, training: bool) -> DataLoader:
        photos = Photos([files[n] for n in rows], labels[rows], size, training)
        return DataLoader(photos, batch, shuffle=training, drop_last=training, num_workers=2)

    for name in MODELS:
        for k in range(setup["folds"]):
            torch.manual_seed(k)
            model = timm.create_model(name, num_classes=classes, drop_rate=0.2).to(
                device, memory_format=torch.channels_last
            )
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
            train_rows, held_out = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
            model.train()
            for images, targets in loader(train_rows, True):
                images = images.to(device, memory_format=torch.channels_last)
                with torch.autocast(device, dtype, enabled=dtype is not None):
                    loss = torch.nn.functional.cross_entropy(model(images).float(), targets.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.eval()
            with torch.inference_mode():
                outputs = []
                for images, _ in loader(held_out, False):
                    images = images.to(device, memory_format=torch.channels_last)
                    with torch.autocast(device, dtype, enabled=dtype is not None):
                        views = [model(images).float().softmax(1), model(images.flip(3)).float().softmax(1)]
                    outputs.append((views[0] + views[1]).cpu().numpy() / 2)
            probs[held_out] += np.concatenate(outputs) / len(MODELS)
    print(f"accuracy {(probs.argmax(1) == labels).mean():.4f} on {device}")


if __name__ == "__main__":
    main()

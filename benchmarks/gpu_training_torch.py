"""Training of a network of timm, as one would write it plainly; started by benchmarks.gpu_training.

It needs an environment with torch and timm and imports nothing of this project.
"""

import json
import sys
import time

import timm
import torch


def main() -> None:
    setup = json.loads(sys.argv[1])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, size, steps, classes = setup["batch"], setup["size"], setup["steps"], setup["classes"]
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(setup["precision"])
    torch.backends.cudnn.benchmark = True
    model = timm.create_model(setup["network"], num_classes=classes, drop_rate=0.2)
    model = model.to(device, memory_format=torch.channels_last).train()
    compiled = torch.compile(model) if setup["compile"] and device == "cuda" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=device == "cuda")
    scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)
    targets = torch.randint(0, classes, (batch,))
    if device == "cuda":
        images, targets = images.pin_memory(), targets.pin_memory()

    def step() -> None:
        x = images.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last).float() / 127.5 - 1.0
        with torch.autocast(device, dtype, enabled=dtype is not None):
            loss = torch.nn.functional.cross_entropy(compiled(x).float(), targets.to(device, non_blocking=True))
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    def seconds() -> float:
        started = time.perf_counter()
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    seconds()  # compiles and chooses algorithms
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    print(json.dumps({"rate": batch * steps / min(seconds() for _ in range(3)), "device": name}))


if __name__ == "__main__":
    main()

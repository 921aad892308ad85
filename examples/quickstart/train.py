"""Train a small GPT on real text: `dsx run --nproc 2 train.py --stage 2`, or plain `python train.py`."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor
from torch.utils.data import default_collate

import dsx
from model import GPT, Shape, generate
from show import Bar, bytes_table
from text import Windows, library_sources

TAG = "half-way"
EVALUATED = 8
"""Windows in the fixed batch on which every run measures its loss."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", type=int, default=2, help="what ZeRO shards: 0 nothing … 3 the parameters too")
    parser.add_argument("--steps", type=int, default=300, help="updates of the whole training")
    parser.add_argument("--until", type=int, help="stop after this update and save a checkpoint")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--report", default="train.json", help="name of the file in --out that tells of this run")
    parser.add_argument("--text", type=Path, help="a file to learn from (default: Python's own library sources)")
    parser.add_argument("--batch", type=int, default=8, help="sequences an update, over all ranks")
    parser.add_argument("--micro", type=int, default=4, help="sequences that a rank computes at once")
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--width", type=int, default=Shape.width)
    parser.add_argument("--bf16", choices=("auto", "yes", "no"), default="auto", help="auto: as the processor prefers")
    parser.add_argument("--sample", type=int, default=240, help="bytes to write at the end")
    return parser.parse_args()


def configuration(args: argparse.Namespace) -> dict[str, Any]:
    """What a ds_config.json would say. The number of accumulated micro-batches follows from the number of ranks."""
    return {
        "train_batch_size": args.batch,
        "train_micro_batch_size_per_gpu": args.micro,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "scheduler": {
            "type": "WarmupCosineLR",
            "params": {
                "total_num_steps": args.steps,
                "warmup_num_steps": max(2, args.steps // 12),
                "cos_min_ratio": 0.1,
            },
        },
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": args.stage},
        "bf16": {"enabled": {"auto": "auto", "yes": True, "no": False}[args.bf16]},
    }


def train(args: argparse.Namespace) -> dict[str, Any]:
    """One run, from a new model or a checkpoint to a checkpoint or a sample. Gives what its report holds."""
    config = configuration(args)
    shape = Shape(layers=args.layers, width=args.width, heads=max(1, args.width // 64))
    text = args.text.read_bytes() if args.text else library_sources()
    held_out = Windows(text, length=shape.context, evaluation=True)
    # The same on every rank, so that its loss is the same number on any number of ranks.
    batch = default_collate([held_out[n] for n in range(min(EVALUATED, len(held_out)))])

    with dsx.construct(config):
        model = GPT(shape)
    training = Windows(text, length=shape.context)
    engine, *_ = dsx.initialize(model=model, training_data=training, config=config)
    with engine:
        if args.resume:
            engine.load_checkpoint(args.out / "checkpoint", tag=TAG)
        run: dict[str, Any] = {"first_update": engine.global_steps}
        run["evaluation_at_start"] = evaluate(engine, batch)
        run |= learn(engine, last=args.until or args.steps)
        run |= held_bytes(engine, batch)
        run["evaluation_at_end"] = evaluate(engine, batch)
        run["tokens"] = len(run["losses"]) * args.batch * shape.context
        if engine.global_steps < args.steps:
            engine.save_checkpoint(args.out / "checkpoint", tag=TAG)
        else:
            run["sample"] = written(engine, shape, args.sample)
    return run


def evaluate(engine: dsx.Engine, batch: list[Tensor]) -> float:
    """The model's loss on a batch, in nats a byte."""
    return float(engine.eval_batch(iter([batch]), micro_batches=1))


def learn(engine: dsx.Engine, *, last: int) -> dict[str, Any]:
    """Train up to an update, and show how it goes."""
    plan = engine.plan
    losses: list[float] = []
    with Bar(first=engine.global_steps, last=last, shown=plan.world.rank == 0) as bar:
        started = time.perf_counter()
        while engine.global_steps < last:
            losses.append(float(engine.train_batch()))
            bar.step(engine.global_steps, losses[-1])
        seconds = time.perf_counter() - started
    return {
        "rank": plan.world.rank,
        "ranks": plan.world.size,
        "stage": engine.zero_optimization_stage(),
        "precision": plan.precision.describe(),
        "losses": losses,
        "seconds": seconds,
    }


def held_bytes(engine: dsx.Engine, batch: list[Tensor]) -> dict[str, Any]:
    """Bytes of training state on this rank when it holds most: between a backward and the update."""
    engine.backward(engine(*batch))
    engine.grad_norm()  # completes the reduction
    predicted, counted = (asdict(kinds) for kinds in engine.state_bytes())
    engine.zero_grad()
    return {"bytes_predicted": predicted, "bytes_counted": counted}


def written(engine: dsx.Engine, shape: Shape, count: int) -> str:
    """What the trained model writes, from its whole fp32 weights."""
    model = GPT(shape)
    model.load_state_dict(engine.full_state_dict())
    prompt = b"def "
    return (prompt + generate(model, prompt, count)).decode(errors="replace")


def main() -> None:
    args = arguments()
    run = train(args)
    if run["rank"] == 0:
        Console().print(bytes_table(run))
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / args.report).write_text(json.dumps(run, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

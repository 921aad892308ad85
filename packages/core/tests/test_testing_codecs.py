"""check_codec passes what keeps the laws, and finds each way of breaking one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dsx.errors import PrecisionError
from dsx.testing import check_codec


class Halves:
    """Numbers as bf16: two bytes each."""

    name = "halves"

    def packed_bytes(self, numel: int) -> int:
        return 2 * numel

    def encode(self, values: Tensor, packed: Tensor) -> None:
        packed.copy_(values.bfloat16().view(torch.uint8))

    def decode(self, packed: Tensor, values: Tensor) -> None:
        values.copy_(packed.clone().view(torch.bfloat16))


class Signs:
    """One byte a number, its sign, and their mean magnitude: coarse, but lawful."""

    name = "signs"

    def packed_bytes(self, numel: int) -> int:
        return numel + 4 if numel else 0

    def encode(self, values: Tensor, packed: Tensor) -> None:
        if values.numel():
            packed[:4].copy_(values.float().abs().mean().reshape(1).view(torch.uint8))
            packed[4:].copy_((values < 0).to(torch.uint8))

    def decode(self, packed: Tensor, values: Tensor) -> None:
        if values.numel():
            values.copy_(packed[:4].clone().view(torch.float32) * (1.0 - 2.0 * packed[4:]))


class Refuses(Halves):
    """Says that inf and nan are not for it."""

    def encode(self, values: Tensor, packed: Tensor) -> None:
        if not torch.isfinite(values).all():
            raise PrecisionError("found inf or nan, wanted finite numbers")
        super().encode(values, packed)


@pytest.mark.parametrize("codec", [Halves, Signs(), Refuses])
def test_lawful_codecs_pass(codec: Any) -> None:
    check_codec(codec, sizes=(0, 1, 7, 300))


def test_a_bound_may_be_sharper() -> None:
    check_codec(Halves, sizes=(1, 300), tolerance=2.0**-7)
    with pytest.raises(AssertionError, match="a number is .* away"):
        check_codec(Signs, sizes=(300,), tolerance=0.25)


class Nameless(Halves):
    name = ""


class TooSmall(Halves):
    def packed_bytes(self, numel: int) -> int:
        return max(2 * numel - 1, 1) if numel else 0

    def encode(self, values: Tensor, packed: Tensor) -> None:
        packed.as_strided((2 * values.numel(),), (1,)).copy_(values.bfloat16().view(torch.uint8))


class SomethingForNothing(Halves):
    def packed_bytes(self, numel: int) -> int:
        return 2 * numel + 2


class LeavesBytes(Halves):
    def packed_bytes(self, numel: int) -> int:
        return 2 * numel + 1 if numel else 0

    def encode(self, values: Tensor, packed: Tensor) -> None:
        packed[: 2 * values.numel()].copy_(values.bfloat16().view(torch.uint8))

    def decode(self, packed: Tensor, values: Tensor) -> None:
        values.copy_(packed[: 2 * values.numel()].clone().view(torch.bfloat16))


class ChangesValues(Halves):
    def encode(self, values: Tensor, packed: Tensor) -> None:
        super().encode(values, packed)
        values.mul_(0.5)


class ChangesPacked(Halves):
    def decode(self, packed: Tensor, values: Tensor) -> None:
        super().decode(packed, values)
        packed.zero_()


class LeavesValues(Halves):
    def decode(self, packed: Tensor, values: Tensor) -> None:
        found = packed.clone().view(torch.bfloat16)
        values[:-1].copy_(found[:-1])


class WritesBeside(Halves):
    def decode(self, packed: Tensor, values: Tensor) -> None:
        super().decode(packed, values)
        values.as_strided((values.numel() + 1,), (1,))[-1] = 0


class Dithers(Halves):
    def encode(self, values: Tensor, packed: Tensor) -> None:
        super().encode(values + torch.rand_like(values), packed)


class Drifts(Halves):
    def decode(self, packed: Tensor, values: Tensor) -> None:
        super().decode(packed, values)
        values.add_(1e-3)


class Mirrors(Halves):
    def decode(self, packed: Tensor, values: Tensor) -> None:
        super().decode(packed, values)
        values.neg_()


class Forgets(Halves):
    def decode(self, packed: Tensor, values: Tensor) -> None:
        values.zero_()


class Divides(Halves):
    def encode(self, values: Tensor, packed: Tensor) -> None:
        largest = values.abs().max() if values.numel() else 1
        super().encode(values / largest * largest, packed)


class Hides(Halves):
    def encode(self, values: Tensor, packed: Tensor) -> None:
        super().encode(values.nan_to_num(0.0, 0.0, 0.0), packed)


class NeedsAligned(Halves):
    def decode(self, packed: Tensor, values: Tensor) -> None:
        values.copy_(packed.view(torch.bfloat16))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Nameless, "its name is ''"),
        (TooSmall, "packed_bytes is not honest"),
        (SomethingForNothing, r"packed_bytes\(0\) is 2, wanted 0"),
        (LeavesBytes, "encode leaves bytes of packed"),
        (ChangesValues, "encode changed values"),
        (ChangesPacked, "decode changed packed"),
        (LeavesValues, "decode leaves values as they were"),
        (WritesBeside, "decode wrote outside values"),
        (Dithers, "encode leaves bytes of packed as they were, or varies"),
        (Drifts, "zeros came back as other numbers"),
        (Mirrors, "a number is .* away"),
        (Forgets, "does not point where it pointed"),
        (Divides, "zero torch.float32: finite numbers came back as inf or nan"),
        (Hides, "one of them inf: it came back finite"),
        (NeedsAligned, "decode raised RuntimeError"),
    ],
)
def test_each_broken_law_is_found(wrong: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_codec(wrong, sizes=(0, 7))

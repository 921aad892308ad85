"""Codec conformance: honest sizes, nothing read or written beside what was given, a bounded error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsx.errors import DsxError
from dsx.testing.verdict import hold, trying

SIZES = (0, 1, 2, 7, 64, 255, 1000, 65_537)
"""Empty, one, odd, a block of any usual length, one less, and more than fits two bytes."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MARGIN = 5
"""Elements around each tensor that a codec must leave alone; odd, so that views are aligned to nothing."""

GARBAGE = (0x00, 0xA5)
"""What ``packed`` holds before it is filled: an honest encoder overwrites either."""


def check_codec(
    codec: Any,
    *,
    sizes: Sequence[int] = SIZES,
    dtypes: Sequence[torch.dtype] = DTYPES,
    tolerance: float = 1.0,
) -> None:
    """Check a codec (class or instance) over sizes, dtypes and kinds of numbers. Raises AssertionError.

    Laws: ``packed_bytes`` is a whole number, 0 for none, and the same each time; ``encode`` fills all of ``packed``,
    and nothing else; ``decode`` fills all of ``values``, and nothing else; both work on unaligned views, and give the
    same bits each time; zeros come back as zeros; finite numbers come back finite, at most ``tolerance`` times the
    largest magnitude away, and pointing the same way; what came back can be encoded again within that bound; inf
    and nan come back as something that is not finite, or are refused with a DsxError.
    """
    made = _make(codec)
    name = getattr(made, "name", None)
    hold(isinstance(name, str) and name, f"{type(made).__name__}: its name is {name!r}, wanted a text")
    for size in sizes:
        packed = _packed_bytes(made, size)
        for dtype in dtypes:
            for title, values in _numbers(size, dtype):
                case = _Case(made, f"codec {name} with {size} {title} {dtype}", packed)
                with trying(case.what):
                    back = case.check(values)
                    case.check_near(values, back, tolerance=tolerance, directed=title in _DIRECTED)
            for bad in (math.inf, -math.inf, math.nan) if size else ():
                _check_bad(
                    _Case(made, f"codec {name} with {size} {dtype}, one of them {bad}", packed), size, dtype, bad
                )


def _make(codec: Any) -> Any:
    if not isinstance(codec, type):
        return codec
    with trying(f"{codec.__name__}()"):
        return codec()


def _packed_bytes(codec: Any, size: int) -> int:
    with trying(f"packed_bytes({size})"):
        first, second = codec.packed_bytes(size), codec.packed_bytes(size)
    hold(type(first) is int and first >= 0, f"packed_bytes({size}) is {first!r}, wanted a whole number")
    hold(first == second, f"packed_bytes({size}) is {first}, then {second}")
    hold(size or first == 0, f"packed_bytes(0) is {first}, wanted 0")
    hold(not size or first, f"packed_bytes({size}) is 0")
    return int(first)


_DIRECTED = ("normal", "equal", "lone")
"""Kinds of numbers that no codec may lose altogether."""


def _numbers(size: int, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    dice = torch.Generator().manual_seed(size)
    normal = torch.randn(size, generator=dice)
    yield "normal", normal.to(dtype)
    yield "zero", torch.zeros(size, dtype=dtype)
    yield "equal", torch.full((size,), -0.75, dtype=dtype)
    lone = torch.zeros(size)
    lone[size // 2 : size // 2 + 1] = 3.0
    yield "lone", lone.to(dtype)
    wide = normal * torch.logspace(-6, 4, max(size, 1))[:size]
    yield "wide", wide.to(dtype)
    yield "tiny", (normal * torch.finfo(dtype).smallest_normal).to(dtype)


def _check_bad(case: _Case, size: int, dtype: torch.dtype, bad: float) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype)
    values[size // 2] = bad
    try:
        back = case.check(values)
    except DsxError:
        return
    hold(not bool(torch.isfinite(back).all()), f"{case.what}: it came back finite, and a bad gradient goes unnoticed")


@dataclass(frozen=True, slots=True)
class _Case:
    codec: Any
    what: str
    packed: int

    def check(self, values: Tensor) -> Tensor:
        """Encode and decode in every way; what came back."""
        coded = [self._encode(values, start=start, garbage=garbage) for start in (0, 1) for garbage in GARBAGE]
        for other in coded[1:]:
            hold(torch.equal(coded[0], other), f"{self.what}: encode leaves bytes of packed as they were, or varies")
        back = [self._decode(coded[0], values, start=start, fill=fill) for start in (0, 1) for fill in (7.0, math.nan)]
        for other in back[1:]:
            same = torch.equal(back[0].view(torch.uint8), other.view(torch.uint8))
            hold(same, f"{self.what}: decode leaves values as they were, or varies")
        return back[0]

    def check_near(self, values: Tensor, back: Tensor, *, tolerance: float, directed: bool) -> None:
        """What came back is near, also the second time."""
        finite = bool(torch.isfinite(back).all())
        hold(finite, f"{self.what}: finite numbers came back as inf or nan")
        wanted, found = values.double(), back.double()
        largest = float(wanted.abs().max()) if values.numel() else 0.0
        hold(largest or not bool(found.any()), f"{self.what}: zeros came back as other numbers")
        self._check_bound(wanted, found, largest * tolerance)
        if largest and directed:
            hold(float((wanted * found).sum()) > 0, f"{self.what}: what came back does not point where it pointed")
        again = self.check(back)
        hold(bool(torch.isfinite(again).all()), f"{self.what}, encoded again: finite numbers came back as inf or nan")
        self._check_bound(found, again.double(), float(found.abs().max()) * tolerance if found.numel() else 0.0)

    def _check_bound(self, wanted: Tensor, found: Tensor, bound: float) -> None:
        worst = float((found - wanted).abs().max()) if found.numel() else 0.0
        # a narrow dtype rounds what is decoded, the smallest numbers to a whole unit of theirs
        slack = bound * 2.0**-7 + 2.0**-24
        hold(worst <= bound + slack, f"{self.what}: a number is {worst:g} away, wanted at most {bound:g}")

    def _encode(self, values: Tensor, *, start: int, garbage: int) -> Tensor:
        source = _view(values, start, fill=7.0)
        kept = source[0].clone()
        whole = torch.full((self.packed + 2 * MARGIN + start,), garbage, dtype=torch.uint8)
        packed = whole[MARGIN + start : MARGIN + start + self.packed]
        with trying(f"{self.what}: encode", allowed=(DsxError,)):
            self.codec.encode(source[1], packed)
        hold(_same(source[0], kept), f"{self.what}: encode changed values, or what lies around them")
        around = torch.cat((whole[: MARGIN + start], whole[MARGIN + start + self.packed :]))
        hold(bool((around == garbage).all()), f"{self.what}: encode wrote outside packed: packed_bytes is not honest")
        return packed.clone()

    def _decode(self, coded: Tensor, like: Tensor, *, start: int, fill: float) -> Tensor:
        whole, values = _view(torch.full_like(like, fill), start, fill=7.0)
        room, packed = _view(coded, start, fill=7)
        kept = room.clone()
        with trying(f"{self.what}: decode", allowed=(DsxError,)):
            self.codec.decode(packed, values)
        hold(torch.equal(room, kept), f"{self.what}: decode changed packed, or what lies around it")
        around = torch.cat((whole[: MARGIN + start], whole[MARGIN + start + like.numel() :]))
        hold(bool((around == 7).all()), f"{self.what}: decode wrote outside values")
        return values.clone()


def _view(values: Tensor, start: int, *, fill: float) -> tuple[Tensor, Tensor]:
    """A copy within a larger allocation: (all, the view)."""
    whole = torch.full((values.numel() + 2 * MARGIN + start,), fill, dtype=values.dtype)
    view = whole[MARGIN + start : MARGIN + start + values.numel()]
    view.copy_(values)
    return whole, view


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))

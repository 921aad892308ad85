"""The core's codecs: sizes, bits, bounds, and that nothing bad gets lost."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsx.codecs.bfloat16 import Bf16
from dsx.codecs.integer8 import BLOCK, Int8
from dsx.codecs.steps import ON_HOST, steps
from dsx.errors import PluginError
from dsx.plugin.kinds import CODEC
from dsx.plugin.manager import plugin_manager
from dsx.plugin.roles import Codec
from dsx.registry.registry import Registry
from dsx.testing import check_codec

CODECS = (Bf16(), Int8())
SIZES = (0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK, ON_HOST - 1, ON_HOST, ON_HOST + BLOCK + 3)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
by_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


def there_and_back(codec: Codec, values: torch.Tensor) -> torch.Tensor:
    packed = torch.empty(codec.packed_bytes(values.numel()), dtype=torch.uint8)
    codec.encode(values, packed)
    found = torch.full_like(values, math.nan)
    codec.decode(packed, found)
    return found


@by_codec
def test_the_kit_finds_no_fault(codec: Codec) -> None:
    check_codec(codec)


@by_codec
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_zeros_stay_zeros_and_the_error_is_bounded(codec: Codec, size: int, dtype: torch.dtype) -> None:
    assert torch.equal(there_and_back(codec, torch.zeros(size, dtype=dtype)), torch.zeros(size, dtype=dtype))
    values = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    found = there_and_back(codec, values)
    bound = values.float().abs() * 2**-8
    if codec.name == "int8":  # half a step of its block, and what the dtype rounds
        largest = [float(block.abs().max()) for block in values.float().split(BLOCK) if block.numel()]
        bound = torch.tensor(largest).repeat_interleave(BLOCK)[:size] / 254 + values.float().abs() * 2**-8
    assert bool(((found.float() - values.float()).abs() <= bound * 1.001 + 1e-12).all())


def test_bytes() -> None:
    assert [Bf16().packed_bytes(n) for n in (0, 1, 1000)] == [0, 2, 2000]
    assert [Int8().packed_bytes(n) for n in (0, 1, 256, 257)] == [0, 5, 260, 265]
    assert Int8().packed_bytes(1 << 20) / (4 << 20) == (1 + 4 / 256) / 4


def test_int8_is_a_scale_a_block_then_a_byte_a_number() -> None:
    values = torch.zeros(BLOCK + 2)
    values[:3] = torch.tensor([127.0, -127.0, 63.4])
    values[BLOCK:] = torch.tensor([-0.5, 0.25])
    packed = torch.empty(Int8().packed_bytes(values.numel()), dtype=torch.uint8)
    Int8().encode(values, packed)
    assert packed[:8].clone().view(torch.float32).tolist() == pytest.approx([1.0, 0.5 / 127])
    codes = packed[8:].view(torch.int8).tolist()
    assert (codes[:3], set(codes[3:BLOCK]), codes[BLOCK:]) == ([127, -127, 63], {0}, [-127, 64])


@by_codec
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_found_where_it_was_and_harms_nothing_beside_it(
    codec: Codec, dtype: torch.dtype, bad: float
) -> None:
    for place in (0, BLOCK - 1, BLOCK, 2 * BLOCK + 4):
        values = torch.randn(2 * BLOCK + 5, generator=torch.Generator().manual_seed(1)).to(dtype)
        whole = there_and_back(codec, values)
        values[place] = bad
        found = there_and_back(codec, values)
        assert (~torch.isfinite(found)).nonzero().flatten().tolist() == [place]
        values[place] = 0.0
        assert float((found - whole).abs().nan_to_num(0.0, 0.0, 0.0).max()) < 0.05  # the block's scale may be finer


@by_codec
def test_a_block_that_is_all_bad(codec: Codec) -> None:
    for bad in (math.nan, math.inf):
        assert not bool(torch.isfinite(there_and_back(codec, torch.full((BLOCK,), bad))).any())


@by_codec
@given(exponent=st.integers(-149, 127), size=st.sampled_from([1, 3, 300]), seed=st.integers(0, 99))
def test_any_magnitude_comes_back_finite_and_near(codec: Codec, exponent: int, size: int, seed: int) -> None:
    values = (torch.rand(size, generator=torch.Generator().manual_seed(seed)) * 2 - 1).double().mul(2.0**exponent)
    values = values.float()
    found = there_and_back(codec, values)
    assert bool(torch.isfinite(found).all())
    largest = float(values.double().abs().max())
    # Denormals are coarse: bf16's lie 2**-133 apart, and a denormal scale is rounded as much.
    assert float((found.double() - values.double()).abs().max()) <= max(largest / 128, 2.0**-134)


@by_codec
def test_encoding_is_the_same_everywhere_and_encoding_again_loses_little(codec: Codec) -> None:
    """Sums are encoded anew before they are gathered: what a codec has made itself it must hold."""
    values = torch.randn(3 * BLOCK + 7, generator=torch.Generator().manual_seed(5))
    once = there_and_back(codec, values)
    assert torch.equal(once, there_and_back(codec, values.clone()))
    assert torch.allclose(there_and_back(codec, once), once, rtol=1e-6, atol=0)


def test_packed_may_lie_at_any_address() -> None:
    values = torch.randn(700)
    for codec in CODECS:
        size = codec.packed_bytes(700)
        whole = torch.zeros(size + 3, dtype=torch.uint8)
        codec.encode(values, whole[3:])
        found = torch.empty(700)
        codec.decode(whole[3:], found)
        assert torch.equal(found, there_and_back(codec, values))


def test_steps_cover_a_tensor_in_whole_blocks() -> None:
    for size in SIZES:
        found = list(steps(torch.empty(size)))
        assert [index for start, stop in found for index in range(start, stop)] == list(range(size))
        assert all(start % BLOCK == 0 for start, _ in found)


def test_codecs_are_registered() -> None:
    registry = Registry(plugin_manager(block=["zero", "native"]), kernels="")
    assert registry.names(CODEC) == ("bf16", "int8")
    assert registry.get(CODEC, "bfloat16") is Bf16
    for name in registry.names(CODEC):
        made = registry.get(CODEC, name)()
        assert made.name == name
    with pytest.raises(PluginError, match="unknown codec 'int9'.*'int8'.*bf16, int8"):
        registry.get(CODEC, "int9")

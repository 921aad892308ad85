"""Checkpointed activations change memory, not numbers."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dsx.activation import ActivationSettings, activation_pass, apply, checkpoint, remove, settings_from
from dsx.activation import checkpoint as package_checkpoint
from dsx.activation.modules import original, spread
from dsx.activation.settings import unheeded
from dsx.builtin.activation import components
from dsx.config.root import DsxConfig
from dsx.errors import ConfigError, PluginError
from dsx.partition import parameters
from dsx.plugin import Layer
from dsx.registry.loading import load_object

BOTH = pytest.mark.parametrize("use_reentrant", [False, True])


class Block(nn.Module):
    """Counts its forwards, drops out, and takes a keyword argument."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: Tensor, *, scale: Tensor | float = 1.0) -> Tensor:
        self.calls += 1
        return torch.tanh(self.dropout(self.linear(x)) * scale) + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block(4) for _ in range(4))
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, scale=1.5)
        return self.head(x)


def gradients(model: nn.Module, *, inputs_need_grad: bool) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_(inputs_need_grad)
    model(x).square().sum().backward()
    found = [param.grad.clone() for param in model.parameters() if param.grad is not None]
    return [*found, x.grad] if x.grad is not None else found


@BOTH
@pytest.mark.parametrize("inputs_need_grad", [False, True])
@pytest.mark.parametrize("offload", [False, True])
def test_gradients_equal_those_without(use_reentrant: bool, inputs_need_grad: bool, offload: bool) -> None:
    """Dropout included: the random state is restored. Also where no input requires a gradient."""
    plain, wrapped = Net(), Net()
    settings = ActivationSettings(use_reentrant=use_reentrant, offload=offload, profile=True, synchronize=True)
    assert apply(wrapped, classes=[Block], settings=settings) == tuple(f"layers.{k}" for k in range(4))
    wanted = gradients(plain, inputs_need_grad=inputs_need_grad)
    found = gradients(wrapped, inputs_need_grad=inputs_need_grad)
    assert len(wanted) == len(found) == 10 + inputs_need_grad
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    assert [layer.calls for layer in plain.layers] == [1] * 4
    assert [layer.calls for layer in wrapped.layers] == [2] * 4


@BOTH
def test_without_the_random_state_dropout_differs(use_reentrant: bool) -> None:
    """The control of the test above: what it asserts can fail."""
    plain, wrapped = Net(), Net()
    apply(wrapped, classes=[Block], settings=ActivationSettings(use_reentrant, preserve_rng_state=False))
    pairs = zip(gradients(plain, inputs_need_grad=True), gradients(wrapped, inputs_need_grad=True), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


@BOTH
def test_keyword_tensors_get_their_gradients(use_reentrant: bool) -> None:
    def function(x: Tensor, flag: bool, *, scale: Tensor, name: str) -> tuple[Tensor, str]:
        return (x * scale).sin() if flag else x, name

    results = []
    for call in (function, lambda *a, **k: checkpoint(function, *a, use_reentrant=use_reentrant, **k)):
        x, scale = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        inner = scale * 3  # not a leaf: gradients must flow on through it
        out, name = call(x, True, scale=inner, name="n")
        assert name == "n"
        out.sum().backward()
        results.append((out.detach(), x.grad, scale.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def saved_bytes(run: Callable[[], Tensor]) -> int:
    """Bytes that autograd keeps for backward and that are not parameters."""
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(kept)


@BOTH
def test_less_is_kept(use_reentrant: bool) -> None:
    plain, wrapped = Net(), Net()
    apply(wrapped, names=["layers.*"], settings=ActivationSettings(use_reentrant))
    x = torch.ones(64, 4)
    assert saved_bytes(lambda: wrapped(x)) < 0.6 * saved_bytes(lambda: plain(x))


@BOTH
def test_offload_sees_the_inputs_and_nothing_else(use_reentrant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import dsx.activation.recompute as module

    moved: list[tuple[int, ...]] = []
    pack = module.to_host
    monkeypatch.setattr(module, "to_host", lambda tensor: moved.append(tuple(tensor.shape)) or pack(tensor))
    x = torch.ones(5, 4, requires_grad=True)
    settings = ActivationSettings(use_reentrant, offload=True)
    out = checkpoint(lambda x: x.sin().cos().exp(), x, settings=settings)
    assert moved == [(5, 4)]
    out.sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(x.sin().cos().exp().sum(), x)[0])


def test_no_grad_is_a_plain_call() -> None:
    block = Block(4)
    with torch.no_grad():
        out = checkpoint(block, torch.ones(1, 4))
    assert not out.requires_grad
    assert block.calls == 1


@BOTH
def test_names_types_copies_and_pickles_stay(use_reentrant: bool) -> None:
    model = Net()
    keys = list(model.state_dict())
    apply(model, classes=["Block"], settings=ActivationSettings(use_reentrant))
    assert list(model.state_dict()) == keys
    assert isinstance(model.layers[0], Block)
    assert repr(model) == repr(Net())
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), model.parameters(), strict=True))
        gradients(other, inputs_need_grad=False)
        assert [layer.calls for layer in other.layers] == [2] * 4
    assert model.layers[0].calls == 0
    remove(model)
    assert type(model.layers[0]) is Block
    gradients(model, inputs_need_grad=False)
    assert model.layers[0].calls == 1


def test_hooks_run_in_the_recomputation() -> None:
    """Sharded parameters are gathered by hooks of the module itself."""
    model = Net()
    seen: list[str] = []
    model.layers[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    model.layers[0].register_forward_hook(lambda *_: seen.append("after"))
    apply(model, names=["layers.0"])
    gradients(model, inputs_need_grad=False)
    assert seen[:3] == ["before", "after", "before"]


def test_choice_by_policy_and_outermost_only() -> None:
    model = Net()
    chosen = apply(model, policy=lambda name, module: name in ("layers.1", "layers.1.linear", "head"))
    assert chosen == ("layers.1", "head")
    assert type(model.layers[1].linear) is nn.Linear
    assert apply(model, names=["layers.1"]) == ("layers.1",)
    assert original(model.layers[1]) is Block  # applied twice, wrapped once
    gradients(model, inputs_need_grad=False)
    assert model.layers[1].calls == 2


@pytest.mark.parametrize(
    ("count", "at_most", "chosen"),
    [(4, None, "0123"), (4, 9, "0123"), (4, 2, "02"), (5, 2, "02"), (7, 3, "024"), (1, 1, "0")],
)
def test_number_checkpoints_are_spread(count: int, at_most: int | None, chosen: str) -> None:
    assert spread([Layer(str(k), "Block", 1) for k in range(count)], at_most) == tuple(chosen)


def test_parts_of_equal_weight_may_choose_other_layers() -> None:
    layers = [Layer(str(k), "Block", weight) for k, weight in enumerate([1, 1, 1, 9])]
    assert spread(layers, 2) == ("0", "2")
    assert spread(layers, 2, by=parameters) == ("0", "3")
    assert spread(layers[:2], 1, by=lambda layers, *, parts: (0, len(layers))) == ("0",)
    with pytest.raises(PluginError, match="2 borders"):
        spread(layers, 3, by=lambda layers, *, parts: (0, len(layers)))


def noted(function: Callable[..., Any], *args: Any, settings: ActivationSettings, **kwargs: Any) -> Any:
    """A way of recomputing that somebody else wrote: it asks for the settings, and leaves a mark."""
    args[0].made_by = settings.at_most
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)


def test_another_method_is_used_and_goes_with_a_pickled_module() -> None:
    model = Net()
    apply(model, names=["layers.*"], settings=ActivationSettings(at_most=1), method=noted)
    for net in (model, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        x = torch.ones(1, 4, requires_grad=True)
        net.layers[0](x, scale=2.0).sum().backward()
        assert x.made_by == 1
        assert net.layers[0].calls == 2
        net.layers[0].calls = 0


def test_a_compiler_sees_one_graph() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    apply(model, classes=[nn.Linear], settings=ActivationSettings(at_most=1))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.ones(1, 4, requires_grad=True)
    compiled(x).sum().backward()
    assert x.grad is not None


def test_a_choice_of_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'Blok' matches no module \(did you mean 'Block'\?\).* Block, Dropout"):
        apply(Net(), classes=["Blok"])
    with pytest.raises(ConfigError, match="the policy matches no module"):
        apply(Net(), policy=lambda name, module: False)


def test_the_section_becomes_a_pass() -> None:
    section = DsxConfig(
        activation_checkpointing={"cpu_checkpointing": True, "number_checkpoints": 2, "partition_activations": True,
                                  "contiguous_memory_optimization": True, "profile": True}
    ).activation_checkpointing  # fmt: skip
    assert settings_from(section) == ActivationSettings(offload=True, at_most=2, profile=True)
    assert [note.partition(" ")[0].rpartition(".")[2] for note in unheeded(section)] == [
        "partition_activations", "contiguous_memory_optimization",
    ]  # fmt: skip
    assert unheeded(DsxConfig().activation_checkpointing) == ()
    model: Any = activation_pass(section, classes=[Block]).apply(Net(), None)  # type: ignore[arg-type]
    gradients(model, inputs_need_grad=False)
    assert [layer.calls for layer in model.layers] == [2, 1, 2, 1]


def test_components_are_callable_alike() -> None:
    for component in components():
        call = load_object(component.load, what=component.name, provider="core")
        x = torch.ones(2, requires_grad=True)
        call(lambda x, y: x * y, x, y=3.0).sum().backward()
        assert x.grad.tolist() == [3.0, 3.0]
    assert callable(package_checkpoint)

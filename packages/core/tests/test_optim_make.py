"""Optimizers from a configuration, an instance or a function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim_helpers import Bucket, OwnComponents, Section
from torch import nn

from dsx.builtin import kernels, optimizers, schedules
from dsx.errors import ConfigError, EngineError
from dsx.kernels import OPERATIONS
from dsx.optim.adam import Adam, AdamW
from dsx.optim.foreign import ForeignOptimizer
from dsx.optim.lamb import Lamb
from dsx.optim.make import make_optimizer, optimizer_class, ownership_of, rebind
from dsx.optim.muon import Muon, is_hidden_matrix
from dsx.precision.policy import PrecisionPolicy

REGISTRY = OwnComponents()


def build(kind: str, **params: Any) -> Any:
    return make_optimizer(Section(kind, params), [nn.Parameter(torch.ones(2, 2))], registry=REGISTRY)


@pytest.mark.parametrize("component", [c for c in optimizers.components() if c.name not in ("LBFGS", "SparseAdam")])
def test_every_name_builds_and_updates(component: Any) -> None:
    for name in (component.name, *component.aliases):
        bucket = Bucket([(2, 3)])
        before = bucket.flat.clone()
        optimizer = make_optimizer(Section(name.upper()), bucket.masters, registry=REGISTRY)
        optimizer.update(bucket.pieces())
        assert (bucket.flat != before).any(), name
        assert ownership_of(optimizer_class(Section(name), registry=REGISTRY)) == optimizer.ownership


def test_every_component_loads() -> None:
    for component in (*optimizers.components(), *schedules.components()):
        assert callable(REGISTRY.get(component.kind, component.name))
    assert [kernel.operation for kernel in kernels.components()] == list(OPERATIONS)
    assert all(kernel.score().value == 1 for kernel in kernels.components())


def test_keys_that_deepspeed_knows() -> None:
    adam = build("Adam", lr=1e-3, betas=[0.8, 0.9], adam_w_mode=False, bias_correction=False, torch_adam=True)
    assert isinstance(adam, Adam)
    assert adam.param_groups[0]["adam_w_mode"] is False
    assert adam.param_groups[0]["betas"] == (0.8, 0.9)
    assert build("Adam").param_groups[0]["adam_w_mode"] is True
    assert isinstance(build("AdamW"), AdamW)
    assert build("AdamW").param_groups[0]["weight_decay"] == 0.01
    assert build("Adam", fp32_optimizer_states=False).state_dtype == torch.bfloat16
    lamb = build("Lamb", max_coeff=5.0, min_coeff=0.1, eps_inside_sqrt=True)
    assert isinstance(lamb, Lamb)
    assert lamb.param_groups[0]["max_coeff"] == 5.0


def test_torch_adam_keeps_to_the_reference() -> None:
    class Forbidden(OwnComponents):
        def kernel(self, operation: str, *, like: Any = None) -> Any:
            raise AssertionError(operation)

    bucket = Bucket([(3,)])
    before = bucket.flat.clone()
    make_optimizer(Section("adam", {"torch_adam": True}), bucket.masters, registry=Forbidden()).update(bucket.pieces())
    assert (bucket.flat != before).all()
    with pytest.raises(AssertionError, match="adam_step"):
        make_optimizer(Section("adam"), bucket.masters, registry=Forbidden()).update(bucket.pieces())


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("Adam", {"weigth_decay": 0.1}, r"weigth_decay is not a parameter of Adam \(did you mean 'weight_decay'\?\)"),
        ("Adam", {"foo": 1}, "Adam takes: lr, betas, eps, weight_decay"),
        ("SGD", {"max_grad_norm": 1.0}, "use the key gradient_clipping"),
        ("torch.SGD", {"max_grad_norm": 1.0}, "use the key gradient_clipping"),
        ("Adam", {"amsgrad": True}, "use the type torch.AdamW"),
        ("AdamW", {"adam_w_mode": False}, 'give the type "Adam"'),
        ("Adam", {"lr": -1}, "lr is -1, wanted at least 0"),
        ("Adam", {"betas": [0.9, 1.0]}, r"betas is 1.0, wanted at least 0 and below 1"),
        ("Adam", {"betas": 0.9}, "betas is 0.9, wanted two numbers"),
        ("Adam", {"lr": float("nan")}, "lr is nan"),
        ("Adam", {"state_dtype": "fp16"}, "squares of gradients vanish"),
        ("Adam", {"state_dtype": "bf61"}, "did you mean 'bf16'"),
        ("SGD", {"nesterov": True}, "wanted a positive momentum"),
        ("Lamb", {"min_coeff": 2.0, "max_coeff": 1.0}, "wanted 0 < min <= max"),
        ("Muon", {"ns_method": "grom"}, "wanted 'gram' or 'standard'"),
        ("Muon", {"ns_steps": 0}, "wanted at least 1"),
        ("Muon", {"lr": 0.0, "muon_lr": 0.1}, "give the base rate"),
    ],
)
def test_wrong_params_are_config_errors(kind: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(kind, **params)


def test_all_wrong_params_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        build("Adam", weigth_decay=0.1, max_grad_norm=1.0, bats=1)
    text = str(caught.value)
    assert all(word in text for word in ("weigth_decay", "max_grad_norm", "bats"))


def test_moments_follow_the_policy_unless_the_params_say_otherwise() -> None:
    policy = PrecisionPolicy(states=torch.bfloat16)
    masters = [nn.Parameter(torch.ones(2))]
    for params, wanted in (({}, torch.bfloat16), ({"state_dtype": "fp32"}, torch.float32)):
        optimizer = make_optimizer(Section("adam", params), masters, registry=REGISTRY, precision=policy)
        assert isinstance(optimizer, Adam)
        assert optimizer.state_dtype == wanted
    make_optimizer(Section("sgd"), masters, registry=REGISTRY, precision=policy)
    assert build("adam").state_dtype is None


def test_an_instance_is_pointed_at_the_masters() -> None:
    model = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(4))]
    client = torch.optim.SGD([{"params": model[:1]}, {"params": model[1:], "lr": 0.5}], lr=1.0)
    group = client.param_groups[1]
    masters = [nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(4))]
    optimizer = make_optimizer(client, [{"params": masters[:1]}, {"params": masters[1:]}], registry=REGISTRY)
    assert isinstance(optimizer, ForeignOptimizer)
    assert optimizer.param_groups[1] is group
    assert group["lr"] == 0.5
    assert group["params"][0] is masters[1]
    assert make_optimizer(client, registry=REGISTRY).param_groups[1]["params"][0] is masters[1]


def test_an_instance_of_ours_takes_the_registry_unless_it_has_kernels() -> None:
    masters = [nn.Parameter(torch.zeros(2))]
    client = AdamW(masters)
    assert make_optimizer(client, masters, registry=REGISTRY) is client
    assert client._kernels is REGISTRY
    own = AdamW(masters, kernels={})
    make_optimizer(own, masters, registry=REGISTRY)
    assert own._kernels == {}


def test_torchs_adagrad_has_a_state_from_the_start() -> None:
    model, masters = [nn.Parameter(torch.ones(2, 3))], [nn.Parameter(torch.ones(4))]
    client = torch.optim.Adagrad(model, lr=0.1, initial_accumulator_value=0.5)
    rebind(client, [{"params": masters}])
    expected = [nn.Parameter(torch.ones(4))]
    peer = torch.optim.Adagrad(expected, lr=0.1, initial_accumulator_value=0.5)
    masters[0].grad = expected[0].grad = torch.full((4,), 2.0)
    client.step()
    peer.step()
    torch.testing.assert_close(masters[0], expected[0], rtol=0, atol=0)
    with pytest.raises(EngineError, match="already taken steps"):
        rebind(client, [{"params": model}])


def test_a_function_of_the_groups() -> None:
    masters = [nn.Parameter(torch.zeros(2))]
    optimizer = make_optimizer(lambda groups: torch.optim.SGD(groups, lr=0.5), masters, registry=REGISTRY)
    assert isinstance(optimizer, ForeignOptimizer)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_other_things_are_refused() -> None:
    masters = [nn.Parameter(torch.zeros(2))]
    with pytest.raises(EngineError, match="a str, wanted a torch optimizer"):
        make_optimizer("adam", masters, registry=REGISTRY)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="is a dict, wanted an instance"):
        make_optimizer(lambda groups: {}, masters, registry=REGISTRY)
    client = torch.optim.SGD(masters, lr=0.1)
    with pytest.raises(ConfigError, match="has 1 parameter groups, the engine made 2"):
        make_optimizer(client, [{"params": masters}, {"params": []}], registry=REGISTRY)


@pytest.mark.parametrize(
    ("name", "shape", "hidden"),
    [
        ("blocks.0.attn.qkv.weight", (6, 2), True),
        ("blocks.0.heads.weight", (6, 2), True),
        ("experts.w1", (4, 6, 2), True),
        ("conv.weight", (4, 3, 2, 2), True),
        ("blocks.0.norm.weight", (6,), False),
        ("tok_embeddings.weight", (6, 2), False),
        ("transformer.wte.weight", (6, 2), False),
        ("lm_head.weight", (6, 2), False),
        ("head.weight", (6, 2), False),
    ],
)
def test_which_parameters_muon_takes(name: str, shape: tuple[int, ...], hidden: bool) -> None:
    assert is_hidden_matrix(name, torch.zeros(shape)) is hidden


def test_muon_orthogonalises_matrices_and_gives_adam_the_rest() -> None:
    """B30, in one process: the step of a matrix has equal singular values; bias and embedding take AdamW's."""
    named = [("w", (6, 10)), ("embed.weight", (6, 10)), ("b", (10,))]
    params = [(name, nn.Parameter(torch.randn(shape))) for name, shape in named]
    before = [p.detach().clone() for _, p in params]
    optimizer = Muon(params, lr=0.1, muon_lr=0.2, adam_lr=0.05, weight_decay=0.1)
    for _, p in params:
        p.grad = torch.randn(p.shape)
    optimizer.step()
    step = (before[0] * (1 - 0.2 * 0.1) - params[0][1].detach()) / 0.2
    assert torch.linalg.svdvals(step).min() > 0.5
    assert torch.linalg.svdvals(step).max() < 1.25
    for old, (_, p) in zip(before[1:], params[1:], strict=True):
        twin = nn.Parameter(old)
        twin.grad = p.grad
        torch.optim.AdamW([twin], lr=0.05, weight_decay=0.1).step()
        torch.testing.assert_close(p.detach(), twin.detach(), rtol=1e-6, atol=1e-6)


def test_muon_rates_move_with_the_group() -> None:
    params = [("w", nn.Parameter(torch.zeros(4, 4))), ("b", nn.Parameter(torch.zeros(4)))]
    optimizer = Muon(params, muon_lr=0.2, adam_lr=0.05)
    assert optimizer.param_groups[0]["lr"] == 0.2
    optimizer.param_groups[0]["lr"] = 0.1
    for _, p in params:
        p.grad = torch.ones(p.shape)
    optimizer.step()
    torch.testing.assert_close(params[1][1].detach(), torch.full((4,), -0.025), rtol=1e-4, atol=0)


def test_use_muon_in_a_group_decides() -> None:
    embed, bias = nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.zeros(4))
    optimizer = Muon([{"params": [("embed.weight", embed)], "use_muon": True}])
    embed.grad = torch.ones(4, 4)
    optimizer.step()
    assert set(optimizer.state[embed]) == {"step", "momentum_buffer"}
    off = Muon([{"params": [("w", embed)], "use_muon": False}])
    off.step()
    assert "exp_avg" in off.state[embed]
    bias.grad = torch.ones(4)
    with pytest.raises(ConfigError, match="'b' of shape"):
        Muon([{"params": [("b", bias)], "use_muon": True}]).step()

"""Cuts a model's parameters into buckets, by family, dtype, trainability and optimizer group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from dsx.errors import PluginError
from dsx.flat.bucket import Bucket, Precision
from dsx.flat.layout import chunk, make_layout
from dsx.flat.policy import Policy
from dsx.mesh.mesh import Mesh
from dsx.optim.binding import OptimizerBinding
from dsx.plugin.types import Family
from dsx.precision.policy import PrecisionPolicy

if TYPE_CHECKING:
    from dsx.plugin.roles import Codec

ALIGN_BYTES = 16
DENSE = Family("dense", members=lambda name, param: True)


@dataclass(frozen=True, slots=True)
class Member:
    """One parameter with all that decides its bucket."""

    name: str
    param: nn.Parameter
    family: Family
    group: int
    """Index of its optimizer group; -1 for a frozen parameter."""
    precision: Precision
    policy: Policy
    unit: str
    """Parameters of one unit are gathered together, so a bucket never spans two."""

    @property
    def key(self) -> tuple[object, ...]:
        return (self.family.name, self.group, self.precision, self.policy, self.unit)


PolicyOf = Callable[[str, nn.Parameter], tuple[Policy, str] | None]
"""The policy and gather unit of one parameter; ``None`` leaves a frozen parameter out of all buckets."""


def family_of(name: str, param: nn.Parameter, families: Sequence[Family]) -> Family:
    """The one family that claims this parameter; ``dense`` where none does."""
    found = [family for family in families if family.members(name, param)]
    if len(found) > 1:
        raise PluginError(
            f"parameter {name!r} falls in families {[family.name for family in found]}: each parameter belongs to one"
        )
    return found[0] if found else DENSE


def members_of(
    model: nn.Module,
    *,
    families: Sequence[Family],
    binding: OptimizerBinding,
    precision: PrecisionPolicy,
    policy_of: PolicyOf,
) -> list[Member]:
    """Every parameter that a bucket will hold, in order of registration."""
    groups = {name: index for index, group in enumerate(binding.groups) for name in group.names}
    found = []
    for name, param in model.named_parameters():
        if not param.dtype.is_floating_point:
            continue
        answer = policy_of(name, param)
        if answer is None or (param.requires_grad and name not in groups and not answer[0].shard_parameters):
            continue
        policy, unit = answer
        group = groups.get(name, -1)
        found.append(
            Member(
                name,
                param,
                family_of(name, param, families),
                group,
                precision_of(name, precision, group >= 0),
                policy,
                unit,
            )
        )
    return found


def precision_of(name: str, policy: PrecisionPolicy, trainable: bool) -> Precision:
    """The dtypes of one parameter; a frozen one has no master, and ``keep_fp32`` modules stay in fp32, uncoded."""
    if any(
        name == prefix or name.startswith(prefix + ".") or f".{prefix}." in f".{name}" for prefix in policy.keep_fp32
    ):
        return Precision(torch.float32, torch.float32, torch.float32, torch.float32)
    master = policy.master if trainable else policy.parameter
    return Precision(
        policy.parameter, policy.accumulate, policy.reduce, master, coded=policy.gradient_codec is not None
    )


def make_buckets(
    members: Iterable[Member], *, mesh: Mesh, binding: OptimizerBinding, codec: Codec | None = None
) -> list[Bucket]:
    """Buckets in the order in which backward fills them: the last layers first.

    ``codec``: in what the gradients of members travel whose precision says that they are coded.
    """
    together: dict[tuple[object, ...], list[Member]] = {}
    order: dict[str, int] = {}
    for index, member in enumerate(members):
        order[member.name] = index
        together.setdefault(member.key, []).append(member)
    buckets = []
    for group in together.values():
        whole = (
            binding.ownership == "parameter" and group[0].policy.shard_state and not group[0].policy.shard_parameters
        )
        limit = sum(m.param.numel() for m in group) if whole else group[0].policy.bucket_numel
        for indices in chunk([member.param.numel() for member in reversed(group)], limit=limit):
            backward = list(reversed(group))
            chosen = [backward[index] for index in reversed(indices)]
            buckets.append(_bucket(chosen, mesh=mesh, binding=binding, codec=codec))
    buckets.sort(key=lambda bucket: -min(order[name] for name in bucket.params))
    return buckets


def _bucket(members: Sequence[Member], *, mesh: Mesh, binding: OptimizerBinding, codec: Codec | None) -> Bucket:
    first = members[0]
    assert codec is not None or not first.precision.coded, "coded gradients need the plan's codec"
    family, policy = first.family, first.policy
    everywhere = mesh.group(*family.reduce_over)
    alone = mesh.group()
    shard_group = mesh.group(*family.shard_over) if policy.shard_state else alone
    rest = tuple(axis for axis in family.reduce_over if axis not in family.shard_over)
    replica_group = everywhere if shard_group is alone else mesh.group(*rest)
    trainable = first.group >= 0
    shapes: Mapping[str, tuple[int, ...]] = {member.name: tuple(member.param.shape) for member in members}
    layout = make_layout(
        shapes,
        degree=shard_group.size,
        ownership=binding.ownership if trainable else "element",
        align=ALIGN_BYTES // first.precision.parameter.itemsize,
    )
    if shard_group.size == 1 and policy.shard_state:
        policy = replace(policy, shard_parameters=False, reduce_each=False)
    return Bucket(
        {member.name: member.param for member in members},
        layout=layout,
        policy=policy,
        precision=first.precision,
        shard_group=shard_group,
        replica_group=replica_group,
        group_index=first.group,
        trainable=trainable,
        codec=codec if first.precision.coded and trainable else None,
    )

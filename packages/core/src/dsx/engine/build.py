"""From a plan and a model to an engine: one named step after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dsx.codecs.make import make_codec
from dsx.comm.collectives import Collectives
from dsx.deferred.materialise import materialise, seed_of
from dsx.deferred.recorder import fill
from dsx.engine.engine import Engine
from dsx.engine.loop import AccumulationLoop
from dsx.engine.named import refuse_unknown_components
from dsx.errors import PlanError
from dsx.flat.bucket import Bucket
from dsx.flat.build import PolicyOf, family_of, make_buckets, members_of
from dsx.flat.driver import FlatDriver
from dsx.flat.policy import Policy
from dsx.mesh.mesh import Mesh
from dsx.observe.start import announce
from dsx.optim.binding import OptimizerBinding, named_groups
from dsx.optim.make import make_optimizer, optimizer_class, ownership_of
from dsx.optim.schedule_driver import make_schedule
from dsx.planning.plan import Plan
from dsx.planning.same import difference, differing_parts, present
from dsx.plugin.manager import PluginManager
from dsx.plugin.roles import Accelerator, Driver
from dsx.plugin.types import Family
from dsx.precision.keep import cast_around_kept, kept_names
from dsx.precision.scaling import make_scaler
from dsx.registry.building import used
from dsx.registry.registry import Registry


def build_engine(
    plan: Plan,
    model: nn.Module,
    *,
    registry: Registry,
    accelerator: Accelerator,
    optimizer: torch.optim.Optimizer | Callable[..., Any] | None = None,
    model_parameters: Iterable[Any] | None = None,
    lr_scheduler: Any = None,
) -> Engine:
    """An engine for this model. A process group exists where there is more than one rank."""
    plugins = registry.plugins
    refuse_unknown_components(plan, registry)
    plan = with_codec(plan, registry)
    device = accelerator.device(plan.world.local_rank)
    accelerator.set_device(plan.world.local_rank)
    mesh = Mesh(plan.axes, world=plan.world, device_type=device.type, timeout=plan.config.comm_timeout)
    try:
        check_same_plan(plan, mesh.world_group)
        for item in plan.passes:
            model = item.apply(model, plan, *(used(registry, kind, name) for kind, name in item.uses))
        families = [tagged.value for tagged in plugins.param_families(plan, model)]
        plan = with_kept_modules(plan, model)
        binding = bind_optimizer(plan, model, optimizer=optimizer, params=model_parameters, registry=registry)
        check_same_model(model, binding, mesh.group("data"))
        materialise(model, device=device, seed=plan.config.seed, buffers=plan.precision.buffers)
        share_buffers(model, mesh)
        driver = make_driver(plan, model, families, binding, mesh=mesh, plugins=plugins)
        schedule = make_schedule(
            plan.config.scheduler, client=lr_scheduler, optimizer=driver.optimizer, registry=registry
        )
        scaler = make_scaler(plan.config, parameter=plan.precision.parameter)
        engine = Engine(
            plan,
            model,
            driver=driver,
            scaler=scaler,
            schedule=schedule,
            mesh=mesh,
            device=device,
            accelerator=accelerator,
            plugins=plugins,
        )
        keep_modules_in_fp32(engine)
        loop = plan.owners.get("loop")
        engine.loop = (
            AccumulationLoop(engine)
            if loop is None
            else plugins.call_owner(loop, "dsx_make_loop", plan=plan, engine=engine)
        )
        engine.watch(plugins.observers(plan, engine))
        announce(engine)
        return engine
    except BaseException:
        mesh.close()
        raise


def check_same_plan(plan: Plan, world: Collectives) -> None:
    """Refuse to train where ranks have planned different things, naming what differs on which."""
    if world.size == 1:
        return
    parts = differing_parts(world.exchange_objects(plan.parts_of_digest(), site="compare plans"))
    if parts:  # on every rank, as all have compared the same, so that all come to the second exchange
        raise PlanError(difference(parts, world.exchange_objects(present(plan.plugins), site="tell plans apart")))


def check_same_model(model: nn.Module, binding: OptimizerBinding, replicas: Collectives) -> None:
    """Refuse data replicas that hold other parameters, or group them otherwise: they would wait for each other."""
    if replicas.size == 1:
        return
    groups = {name: f"group {index}" for index, group in enumerate(binding.groups) for name in group.names}
    mine = {name: f"{tuple(param.shape)}, {groups.get(name, 'frozen')}" for name, param in model.named_parameters()}
    mark = hashlib.sha256(repr(list(mine.items())).encode()).hexdigest()
    if len(set(replicas.exchange_objects(mark, site="compare models"))) == 1:
        return
    everyone = replicas.exchange_objects(mine, site="tell models apart")
    for rank, other in zip(replicas.ranks[1:], everyone[1:], strict=True):
        for name in {**everyone[0], **other}:
            first, second = everyone[0].get(name, "absent"), other.get(name, "absent")
            if first != second:
                raise PlanError(
                    f"rank {rank} holds another model than rank {replicas.ranks[0]}: parameter {name!r} is {second} "
                    f"there, {first} here. Build the same model and the same parameter groups on every rank"
                )
    raise PlanError(
        f"the ranks {list(replicas.ranks)} hold the same parameters in another order: build the model alike on each"
    )


def with_codec(plan: Plan, registry: Registry) -> Plan:
    """The plan with the codec that it names, made; as it is where it names none."""
    name = plan.precision.gradient_codec
    if name is None:
        return plan
    return replace(plan, precision=replace(plan.precision, codec=make_codec(name, registry=registry)))


def with_kept_modules(plan: Plan, model: nn.Module) -> Plan:
    """The plan with the names of the parameters that stay in fp32 in this model."""
    kept = kept_names(plan.precision, model)
    return replace(plan, precision=replace(plan.precision, keep_fp32=tuple(sorted(kept))))


def keep_modules_in_fp32(engine: Engine) -> None:
    """Cast around the modules that stay in fp32."""
    precision = engine.plan.precision
    if precision.keep_fp32:
        kept = frozenset(precision.keep_fp32)
        for handle in cast_around_kept(engine.module, kept, outside=precision.compute):
            engine.cleanups.callback(handle.remove)


def bind_optimizer(
    plan: Plan,
    model: nn.Module,
    *,
    optimizer: torch.optim.Optimizer | Callable[..., Any] | None,
    params: Iterable[Any] | None,
    registry: Registry,
) -> OptimizerBinding:
    """The client's optimizer, object or callable, or the configuration's, ready to be bound to pieces."""
    spec: Any = plan.config.optimizer
    if optimizer is not None:
        client = optimizer
        if not isinstance(client, torch.optim.Optimizer):
            client = client(list(model.parameters()) if params is None else list(params))
        spec, params = client, client.param_groups
    groups = named_groups(model, params)
    if spec is None:
        return OptimizerBinding(groups, "element", None)

    def build(pieces: list[dict[str, Any]]) -> Any:
        return make_optimizer(spec, pieces, registry=registry, precision=plan.precision)

    kind = spec if optimizer is not None else optimizer_class(spec, registry=registry)
    return OptimizerBinding(groups, ownership_of(kind), build)


def make_driver(
    plan: Plan,
    model: nn.Module,
    families: Sequence[Family],
    binding: OptimizerBinding,
    *,
    mesh: Mesh,
    plugins: PluginManager,
) -> Driver:
    """The owner's driver; plain data parallelism where nobody owns it."""
    owner = plan.owners.get("driver")
    if owner is not None:
        driver: Driver = plugins.call_owner(
            owner, "dsx_make_driver", plan=plan, model=model, families=families, make_inner=binding, mesh=mesh
        )
        refuse_uncoded(plan, driver, owner=plugins.provider(owner))
        return driver
    policy = replicated_policy(plan)
    buckets = cut_buckets(
        plan,
        model,
        families,
        binding,
        mesh=mesh,
        policy_of=lambda name, param: (policy, "") if param.requires_grad else None,
    )
    return FlatDriver(model, buckets, binding=binding, mesh=mesh)


def refuse_uncoded(plan: Plan, driver: Driver, *, owner: str) -> None:
    """Refuse a configured codec that the owner's driver does not use, instead of passing over it in silence."""
    if plan.precision.gradient_codec is not None and not getattr(driver, "takes_codec", False):
        raise PlanError(
            f"gradient_codec: found {plan.precision.gradient_codec!r}, but the driver of {owner} moves gradients its "
            "own way\n    what to do: leave the key out (a driver that reduces in plan.precision.codec says so by the "
            "attribute takes_codec = True)"
        )


def cut_buckets(
    plan: Plan,
    model: nn.Module,
    families: Sequence[Family],
    binding: OptimizerBinding,
    *,
    mesh: Mesh,
    policy_of: PolicyOf,
) -> list[Bucket]:
    """Buckets that have taken over the model's parameters under these policies; what none holds is placed whole."""
    members = members_of(model, families=families, binding=binding, precision=plan.precision, policy_of=policy_of)
    place_frozen(model, {member.name for member in members}, plan, families=families, mesh=mesh)
    buckets = make_buckets(members, mesh=mesh, binding=binding, codec=plan.precision.codec)
    for bucket in buckets:
        bucket.adopt(seed=plan.config.seed)
    return buckets


def replicated_policy(plan: Plan, **changes: Any) -> Policy:
    """The policy of plain data parallelism under this configuration; ``changes`` make any other of it."""
    config = plan.config
    replicas = plan.batch.replicas
    return replace(
        Policy(
            average=config.gradient_allreduce_op == "mean",
            predivide=float(replicas) if config.prescale_gradients else float(config.gradient_predivide_factor),
        ),
        **changes,
    )


def place_frozen(model: nn.Module, held: set[str], plan: Plan, *, families: Sequence[Family], mesh: Mesh) -> None:
    """Parameters that rest whole outside all buckets: in the parameter dtype, with the first rank's values."""
    for name, param in model.named_parameters():
        if name in held:
            continue
        if hasattr(param, "recipe"):
            place = torch.empty(param.shape, dtype=param.dtype, device=param.device)
            fill(param, place, seed=seed_of(name, plan.config.seed))
            param.data = place
        if param.dtype.is_floating_point and name not in plan.precision.keep_fp32:
            param.data = param.data.to(plan.precision.parameter)
        share(param.data, mesh.group(*family_of(name, param, families).reduce_over), site=f"initial {name}")


def share_buffers(model: nn.Module, mesh: Mesh) -> None:
    """Give all data-parallel ranks the first one's buffers."""
    for name, buffer in model.named_buffers():
        share(buffer, mesh.group("data"), site=f"initial {name}")


def share(tensor: torch.Tensor, group: Collectives, *, site: str) -> None:
    """Give a tensor of the group's first rank to the others, bit by bit, in place."""
    if group.size > 1 and tensor.numel():
        whole = tensor.detach().contiguous()
        group.broadcast(whole.reshape(-1).view(torch.uint8), source=0, site=site)
        if whole.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(whole)

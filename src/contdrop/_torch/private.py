"""Private parts of torch, and the fallbacks of this package without them.

torch may rename, remove or change names with an underscore in any release. So each such part is looked up only here,
tried if that is cheap, and belongs to one ability of the package. If a part is missing or behaves differently, its
ability is turned off and torch's dispatcher gives the same numbers:

===================  ============================================================================================
ability              without it
===================  ============================================================================================
``unobserved``       every call passes the dispatcher; slower for small layers, and so is the fast path in C
``DERIVATIVES``      torch differentiates the reference back end: the same numbers to 1e-6, slower
``DRAWS_IN_GRAPHS``  a compiled graph breaks where a seed is drawn; with ``fullgraph=True`` torch.compile says so, and
                     export in training mode raises
``GENERATORS_…``     the same, for layers with a generator of their own
``in_backward``      a warning in place of the error, if a layer with a generator of its own is run in backward
``dlpack_table``     the fast path in C declines
``node_class``       the fast path's backward passes through a method in Python
``DropoutBase``      layers derive from torch.nn.Module
===================  ============================================================================================

The environment variable ``CONTDROP_WITHOUT``, a list of names such as ``torch._C._has_storage`` with commas between
them, makes the package do without them: to test that, and to find out whether one of them is to blame for something.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx.traceback
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.autograd import forward_ad

VARIABLE = "CONTDROP_WITHOUT"
_without = frozenset(name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip())


def find(name: str) -> Any:
    """Return the object of a dotted name, or None."""
    if name in _without:
        return None
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return None


def _find_all(*names: str) -> list[Any] | None:
    found = [find(name) for name in names]
    return None if None in found else found


# Who else looks at a tensor: only if nobody does may an operation go past the dispatcher.

transforms_active: Callable[[], bool] | None = find("torch._C._are_functorch_transforms_active")
dispatch_modes: Callable[[], int] | None = find("torch._C._len_torch_dispatch_stack")
tracing_state: Callable[[], object] | None = find("torch._C._get_tracing_state")
_has_storage: Callable[[Tensor], bool] | None = find("torch._C._has_storage")
_dispatch_mode: Any = find("torch.utils._python_dispatch.TorchDispatchMode")
_forward_level: int | None = find("torch.autograd.forward_ad._current_level")


def _sees_everybody() -> bool:
    """Try the parts above on a tensor, in a transform, in a mode, and in forward mode."""
    if tracing_state is None or _forward_level is None:
        return False
    answers = []

    def look(x: Tensor) -> Tensor:
        answers.append(transforms_active())  # type: ignore[misc]
        return x

    try:
        one = torch.zeros(1, device="cpu")
        torch.func.vmap(look)(one)
        modes = dispatch_modes()  # type: ignore[misc]
        with _dispatch_mode():
            answers.append(dispatch_modes() == modes + 1)  # type: ignore[misc]
        if forward_ad._current_level < 0:  # else this package is being imported inside of forward mode
            with forward_ad.dual_level():
                answers.append(forward_ad._current_level >= 0)
        answers.append(_has_storage(one))  # type: ignore[misc]
        return all(answer is True for answer in answers)
    except Exception:  # whatever a part does that it did not do before, it is not to be relied on
        return False


SEES_EVERYBODY = _sees_everybody()


def unobserved(x: Tensor) -> bool:
    """Return True if only reverse-mode differentiation observes operations on x; False if that is unknown."""
    return (
        SEES_EVERYBODY
        and not transforms_active()  # type: ignore[misc]
        and dispatch_modes() == 0  # type: ignore[misc]
        and tracing_state() is None  # type: ignore[misc]
        and forward_ad._current_level < 0
        and _has_storage(x)  # type: ignore[misc]  # an older kind of vmap, in batched gradients, uses tensors without
    )


# Derivatives of operators, of one level of torch.func's transforms at a time.

_below_autograd: Any = find("torch._C._AutoDispatchBelowAutograd")
_one_level: Any = find("torch._functorch.utils.enable_single_level_autograd_function")
_base: Any = find("torch.autograd.function._SingleLevelFunction")
_forward_mode: Any = find("torch.autograd.forward_ad._set_fwd_grad_enabled")

if TYPE_CHECKING:
    OneLevelFunction = torch.autograd.Function
else:
    # torch.autograd.Function starts torch.func's transforms anew, although the dispatcher is in the middle of one when
    # it calls an Autograd kernel. Its base class applies the one level that is being processed.
    class OneLevelFunction(_base or torch.autograd.Function):
        _compiled_autograd_key = staticmethod(
            find("torch.autograd.Function._compiled_autograd_key") or (lambda ctx: ())
        )


_outside = threading.local()  # its attribute gradients: whether they are on where an autograd function is applied


def apply_one_level(function: type[torch.autograd.Function], *args: Any) -> Any:
    """Apply a subclass of :class:`OneLevelFunction` in an Autograd kernel."""
    if transforms_active():  # type: ignore[misc]
        _outside.gradients = torch.is_grad_enabled()
        with _one_level():
            return function.apply(*args)
    return function.apply(*args)


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Make the first operator that an autograd function calls in forward skip the derivatives of its own level."""
    return _to_outer_levels() if transforms_active() else _below_autograd()  # type: ignore[misc]


@contextlib.contextmanager
def _to_outer_levels() -> Iterator[None]:
    # An autograd function turns gradients and tangents off around its forward, but other levels need them.
    with torch.set_grad_enabled(getattr(_outside, "gradients", True)), _forward_mode(True), _below_autograd():
        yield


class _Double(OneLevelFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with below_autograd():
            return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * 2


# torch.func.grad and torch.func.jvp would do for a trial, but the first imports the whole compiler, the second compiles
# functions with the deprecated torch.jit.script: seconds and warnings for everybody who imports this package.
_jvp_parts = _find_all(
    "torch._C._functorch._jvp_increment_nesting",
    "torch._C._functorch._jvp_decrement_nesting",
    "torch._VF._make_dual",
)


def _gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.autograd.grad(function(x), x, create_graph=True)[0]


def _tangent(function: Callable[[Tensor], Tensor], one: Tensor) -> float:
    """Compute the derivative at 1 by one level of torch.func.jvp."""
    if _jvp_parts is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return float(torch.func.jvp(function, (one,), (one,))[1])
    enter_level, leave_level, make_dual = _jvp_parts
    enter_level()
    try:
        with forward_ad.dual_level():
            return float(forward_ad.unpack_dual(function(make_dual(one, one, level=0))).tangent)
    finally:
        leave_level()


def _differentiates() -> bool:
    """Try the parts above with an operator that doubles: reverse mode, forward mode, and transforms of both."""
    if None in (_below_autograd, _one_level, _base, _forward_mode, transforms_active):
        return False
    try:
        _trial.define("double(Tensor x) -> Tensor")
        _trial.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
        _trial.impl("double", lambda x: apply_one_level(_Double, x), "Autograd")
        double = torch.ops.contdrop_trial.double.default
        with torch.inference_mode(False), torch.enable_grad():
            one = torch.ones((), device="cpu")
            reverse = _gradient(double, one.clone().requires_grad_())
            transformed = torch.func.vjp(lambda x: _gradient(lambda x: double(x) * x, x), one)[0]
            outside = _gradient(lambda x: torch.func.vjp(double, x)[0], one.clone().requires_grad_())
            return (reverse.item(), transformed.item(), outside.item(), _tangent(double, one)) == (2, 4, 2, 2)
    except Exception:
        return False


_trial = torch.library.Library("contdrop_trial", "DEF")
DERIVATIVES = _differentiates()


# Random draws inside of compiled graphs.

_effects = _find_all("torch._library.effects.EffectType", "torch.library.Library._register_effectful_op")
# Where they were before torch 2.10. To look there imports much, so it is done only if need be.
_older_effects = _effects or _find_all(
    "torch._higher_order_ops.effects._EffectType", "torch._higher_order_ops.effects._register_effectful_op"
)
functional_mode: Any = find("torch._subclasses.functional_tensor.FunctionalTensorMode")
_graph_marks: Any = find("torch.fx.traceback.current_meta")
_never_recomputed: Any = find("torch.utils.checkpoint.SAC_IGNORED_OPS")
_vmap_parts = _find_all(
    "torch._C._functorch.get_interpreter_stack",
    "torch._functorch.pyfunctorch.coerce_cinterpreter",
    "torch._C._functorch.TransformType.Vmap",
    "torch._C._functorch._add_batch_dim",
    "torch._C.DispatchKeySet",
    "torch._C.DispatchKey.FuncTorchVmapMode",
    "torch._C._DisableFuncTorch",
    "torch._C._ExcludeDispatchKeyGuard",
)
DRAWS_IN_GRAPHS = None not in (_older_effects, functional_mode, _graph_marks, _never_recomputed, _vmap_parts)
# Older compilers cannot run a function that is given a generator while tracing: tried with 2.6 and 2.8.
GENERATORS_IN_GRAPHS = DRAWS_IN_GRAPHS and torch.__version__ >= "2.13"


def register_draw(library: torch.library.Library, name: str, op: Any) -> None:
    """Register an operator whose calls are neither merged, nor reordered, nor run again in backward."""
    kinds, register = _effects or _older_effects  # type: ignore[misc]
    register(*((library, name) if _effects else (op,)), kinds.ORDERED)
    op.py_impl(functional_mode)(lambda mode, *args, **kwargs: _without_marks(mode, op, args, kwargs))
    _never_recomputed.add(op)


def _without_marks(mode: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """Exclude the draw from the nodes that a compiled activation checkpoint recomputes in backward.

    The seed is eight bytes; a second draw would give backward another mask than forward.
    """
    meta: dict[str, Any] = torch.fx.traceback.current_meta
    marks: dict[str, Any] = {name: meta.pop(name) for name in ("recompute", "ac_graph_id") if name in meta}
    try:
        return mode.__torch_dispatch__(op, (), args, kwargs)
    finally:
        meta.update(marks)


def draw_under_vmap(op: Any, generator: int, size: list[int]) -> Tensor:
    """Draw under torch.func.vmap like torch's own random functions: all nested levels at once, outermost first."""
    stack, interpreter, vmap, add_batch, key_set, vmap_mode, no_transforms, without_key = _vmap_parts  # type: ignore[misc]
    levels: list[Any] = [interpreter(level) for level in stack() or ()]
    levels = [level for level in levels if level.key() == vmap]
    if any(level.randomness() == "error" for level in levels):
        raise RuntimeError(
            "vmap: dropout draws random numbers, and vmap's randomness is 'error'; "
            "call vmap with randomness='same' or randomness='different'"
        )
    different = [level for level in levels if level.randomness() == "different"]
    with no_transforms(), without_key(key_set(vmap_mode)):
        seed = op(generator, [*(level.batch_size() for level in different), *size])
    for level in different:
        seed = add_batch(seed, 0, level.level())
    return seed


def mark_constant(function: Callable[..., Any]) -> None:
    """Mark a function that torch.compile runs once, while tracing, like torch.compiler.assume_constant_result.

    That function imports the whole compiler, which would double the time that importing this package takes.
    """
    if "_dynamo_marked_constant" in _without:
        torch.compiler.assume_constant_result(function)
    else:
        function._dynamo_marked_constant = True  # type: ignore[attr-defined]


backward_task: Callable[[], int] | None = find("torch._C._current_graph_task_id")


def in_backward() -> bool:
    """Return True if this thread runs a backward pass; warn and return False if that is unknown."""
    if backward_task is None:
        warnings.warn(
            "contdrop: this version of torch does not tell whether backward is running, so a layer with a generator of "
            "its own cannot refuse to draw another mask there; under activation checkpointing use "
            "checkpoint(..., use_reentrant=False, context_fn=contdrop.checkpoint_context)",
            stacklevel=4,
        )
        return False
    return backward_task() != -1


# What the fast path in C is connected to.

dlpack_table: Any = find("torch.Tensor.__dlpack_c_exchange_api__")


def node_class(function: type[torch.autograd.Function]) -> Any:
    """Return the class of an autograd function's nodes in the graph, or None."""
    return None if "_backward_cls" in _without else getattr(function, "_backward_cls", None)


# Modules.

_dropout: Any = find("torch.nn.modules.dropout._DropoutNd")
_batch_norm: Any = find("torch.nn.modules.batchnorm._BatchNorm")

if TYPE_CHECKING:
    from torch.nn.modules.dropout import _DropoutNd

    DropoutBase = _DropoutNd
else:
    DropoutBase = _dropout or nn.Module

TORCH_DROPOUTS: tuple[type[nn.Module], ...] = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
BATCH_NORMS: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
if _dropout:
    TORCH_DROPOUTS = (_dropout,)
if _batch_norm:
    BATCH_NORMS = (_batch_norm,)


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the module's own buffers by name, including those that are None, which named_buffers omits."""
    found = None if "_buffers" in _without else vars(module).get("_buffers")
    return dict(module.named_buffers(recurse=False) if found is None else found.items())


def is_sequence(module: nn.Module) -> bool:
    """Return True for a torch.nn.Sequential with its own forward; the class of a scripted module has none."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def has_forward_hooks(module: nn.Module) -> bool:
    return any(getattr(module, name, None) for name in ("_forward_hooks", "_forward_pre_hooks"))


def has_hooks(module: nn.Module) -> bool:
    backward = any(getattr(module, name, None) for name in ("_backward_hooks", "_backward_pre_hooks"))
    return backward or has_forward_hooks(module)


def share_hooks(source: nn.Module, target: nn.Module) -> None:
    """Give a module the hook dictionaries of another, so that both share later changes."""
    for name, value in vars(source).items():
        if "hook" in name:
            vars(target)[name] = value


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


# Operators, as a dispatch mode sees them.

DispatchMode = torch.utils._python_dispatch.TorchDispatchMode


def argument(op: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Return the argument of that name in a call of an operator, or None."""
    if name in kwargs:
        return kwargs[name]
    for place, each in enumerate(op._schema.arguments):
        if each.name == name:
            return args[place] if place < len(args) else each.default_value
    return None


def target_name(node: torch.fx.Node) -> str:
    """Return the readable name of the target of a node."""
    with contextlib.suppress(Exception):
        if find("torch.fx.Node._pretty_print_target") is not None:
            return str(node._pretty_print_target(node.target))  # of a node in torch 2.6, of the class later
    return str(getattr(node.target, "__name__", node.target))

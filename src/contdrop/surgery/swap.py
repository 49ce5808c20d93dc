"""Exchange of a model's dropout layers."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch

from .._text import plural
from .._torch.checks import check_choice, check_model
from .._torch.private import share_hooks
from ..choices import SCALES, Scale
from ..errors import suggest
from ..laws import LAWS, Bernoulli, BuiltIn, Gaussian, Law, parse_law
from ..nn import BernoulliDropout, Dropout
from .dropout_layers import ALPHA, children, is_plain, shared_axes
from .relu_fusion import Pair, pairs
from .static_scan import out_of_reach, unreachable

Choose = Callable[[str, torch.nn.Module], "Law | str | None"]
Only = str | Collection[str] | Callable[[str, torch.nn.Module], bool]
Match = Literal[None, "variance"]
_Decision = Callable[[str, torch.nn.Module], "Law | Literal['leave'] | None"]


class Replaced(NamedTuple):
    """A layer that was taken out, and the one in its place."""

    old: torch.nn.Module
    new: torch.nn.Module


class _Place(NamedTuple):
    name: str
    parent: torch.nn.Module
    key: str
    layer: torch.nn.Module


class Swap:
    """Result of :func:`swap_dropout`, and the way back.

    Attributes:
        replaced: Old and new layer by name. A layer used in several places has several names.
        unreachable: Dropout left in the model because it is not a layer, as it is after the swap.
        fused: Names of the new layers that also apply the ReLU before them.
    """

    def __init__(
        self, model: torch.nn.Module, changes: list[tuple[_Place, torch.nn.Module]], fused: list[Pair]
    ) -> None:
        self._changes, self._fused = changes, fused
        self.replaced = {place.name: Replaced(place.layer, new) for place, new in changes}
        self.unreachable = unreachable(model)
        self.fused = [pair.name for pair in fused]
        self._slowed = _disable_fused_encoder(model, self.layers)

    @property
    def layers(self) -> list[torch.nn.Module]:
        """The new layers, each once."""
        return list({id(each.new): each.new for each in self.replaced.values()}.values())

    def undo(self) -> None:
        """Put the old layers back, in the mode (training or evaluation) of the new ones.

        Hooks registered since the swap stay. Undo several swaps in reverse order. A second call does nothing.

        Raises:
            RuntimeError: Another layer is in the place of a new one; nothing is changed then.
        """
        for (name, parent, key, old), new in self._changes:
            now = getattr(parent, key, None)
            if now is not new:
                raise RuntimeError(
                    f"undo: expected {name} to be the layer that swap_dropout put there, got "
                    f"{type(now).__name__}; undo several swaps in reverse order"
                )
            if getattr(new, "activation", None) != getattr(old, "activation", None) and name not in self.fused:
                raise RuntimeError(
                    f"undo: expected {name} as swap_dropout made it, but fuse_relu put the ReLU before it inside"
                    "; let swap_dropout do that (fuse_relu=True), and undo takes it out again"
                )
        for pair in self._fused:
            pair.part()
        for (_, parent, key, old), new in self._changes:
            setattr(parent, key, old)
            old.training = new.training
            share_hooks(new, old)  # a hook registered since may be of a kind the old layer had none of
        for layer, before in self._slowed:
            layer.activation_relu_or_gelu = before
        self._changes, self._fused, self._slowed = [], [], []

    def __repr__(self) -> str:
        first = f"swapped {plural(len(self.layers), 'dropout layer')}"
        sites = [f"{name}: {what}, rate {'unknown' if p is None else f'{p:g}'}" for name, what, p in self.unreachable]
        return "\n  ".join([f"{first}; out of reach: {len(sites) or 'nothing'}", *sites])


def swap_dropout(
    model: torch.nn.Module,
    law: Law | str | type[BuiltIn] | Choose | None,
    *,
    match: Match = None,
    only: Only | None = None,
    scale: Scale | None = None,
    fuse_relu: bool = False,
) -> Swap:
    """Replace a model's dropout layers in place, anywhere in its tree of modules.

    Replaces ``torch.nn.Dropout``, ``Dropout1d``, ``Dropout2d``, ``Dropout3d``, :class:`contdrop.Dropout` and its
    subclasses, whatever their rate, unless a ``forward`` was assigned to the layer itself. A layer used in several
    places stays one layer. New layers keep the mode, hooks, ``inplace`` and, of contdrop's layers, the generator and
    activation. Parameters, buffers and their names do not change. A plain Bernoulli law on single elements makes
    :class:`contdrop.BernoulliDropout`, which is a ``torch.nn.Dropout``.

    Feature maps: in place of ``Dropout1d`` and ``Dropout3d``, one value is shared along the last one or three axes,
    with or without a batch axis, as in torch. In place of ``Dropout2d``, it is shared along axes 2 and 3 of
    [N, C, H, W]; three axes, which torch reads as [N, C, L] with a warning, are an error.

    Out of reach is dropout that is not a layer: functions called in ``forward``, attention probabilities, ``dropout=``
    of recurrent layers. It is listed, stays on, and stays Bernoulli. A model that passes the ``p`` of a dropout layer
    to an attention function passes the ``p`` of the new layer: the rate of equal strength, 0 for no noise.

    Args:
        model: Any module that contains dropout layers and is not scripted.
        law: Law of the mask values, its text ("gaussian:sigma=0.3"), None for no noise, or a function of a layer's
            name and the layer that returns a law, its text, or None to leave the layer. With ``match``, a family:
            "bernoulli", "uniform" (up to p = 0.25), "gaussian" (clipped; up to p of about 0.5, but from p = 0.4 on most
            values are at a bound), "normal" (the unclipped Gaussian, any strength), or the class of a law.
        match: "variance" gives each layer a law of its own noise strength, p / (1 - p) for torch's; see
            ``Gaussian.matching``. Layers without noise are left alone.
        only: Layers to replace: a pattern of names ("encoder.*"), names, or a function of name and layer.
        scale: "inverted" or "paper"; None keeps that of each layer, "inverted" for torch's. ("paper" keeps torch's
            TransformerEncoderLayer from its fused evaluation, which would skip the factor.)
        fuse_relu: Let the new layers also apply a torch.nn.ReLU right before them: the same numbers in less time. See
            :func:`contdrop.fuse_relu` for the conditions.

    Raises:
        ValueError: Among others, the model has no dropout layer, or ``only`` names none.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2))
        >>> swap_dropout(model, "gaussian", match="variance")
        swapped 1 dropout layer; out of reach: nothing
    """
    _check(model, match, scale)
    choose = _matching(law) if match else _chooser(law)
    wanted = _selection(model, only)
    new: dict[torch.nn.Module, torch.nn.Module | None] = {}
    found = list(_layers(model))
    for name, _, _, old in found:
        if wanted(name, old) and old not in new:
            new[old] = _replacement(name, old, choose, scale, fuse_relu)
    # A shared layer is replaced in all its places, whichever of its names was asked for.
    changes = [(place, layer) for place in found if (layer := new.get(place.layer)) is not None]
    # All layers are made before the model is changed, so that an error changes nothing.
    for place, layer in changes:
        setattr(place.parent, place.key, layer)
    names = {place.name for place, _ in changes}
    fused = [pair for pair in pairs(model) if fuse_relu and pair.name in names]
    for pair in fused:
        pair.fuse()
    return Swap(model, changes, fused)


def _disable_fused_encoder(
    model: torch.nn.Module, new: Iterable[torch.nn.Module]
) -> list[tuple[torch.nn.TransformerEncoderLayer, int]]:
    """Turn off the fused evaluation of torch's encoder layers, which would skip the factor of ``scale="paper"``.

    Torch takes it for ReLU and GELU only, so it is disabled by an attribute that states another activation. Returns the
    encoder layers, and the previous value of that attribute.
    """
    paper = {layer for layer in new if isinstance(layer, Dropout) and layer.scale == "paper"}
    kinds = [module for module in model.modules() if isinstance(module, torch.nn.TransformerEncoderLayer)]
    found = [(layer, layer.activation_relu_or_gelu) for layer in kinds if paper.intersection(layer.modules())]
    for layer, _ in found:
        layer.activation_relu_or_gelu = 0
    return found


def _check(model: torch.nn.Module, match: object, scale: object) -> None:
    check_model("swap_dropout", model, "swap")
    if is_plain(model) or isinstance(model, ALPHA):
        raise ValueError(
            f"swap_dropout: expected a model with dropout layers in it, got {type(model).__name__} itself, which has "
            "no place to be taken out of; put it into a torch.nn.Sequential"
        )
    check_choice("swap_dropout", "match", match, (None, "variance"))
    check_choice("swap_dropout", "scale", scale, (None, *SCALES))
    if not any(_layers(model)):
        left = out_of_reach(model)
        raise ValueError(
            f"swap_dropout: expected a model with dropout layers, got {type(model).__name__} without any"
            + (f"; out of reach: {left}" if left else "")
        )


def _layers(model: torch.nn.Module) -> Iterator[_Place]:
    """Yield every dropout layer, once for each place."""
    for path, parent in model.named_modules():
        for key, layer in children(parent):
            if is_plain(layer) or isinstance(layer, ALPHA):
                yield _Place(f"{path}.{key}" if path else key, parent, key, layer)


def _selection(model: torch.nn.Module, only: Only | None) -> Callable[[str, torch.nn.Module], bool]:
    """Return the function that tells which layers to replace."""
    if only is None:
        return lambda name, layer: True
    if callable(only):
        return only
    known = [name for name, *_ in _layers(model)]
    if isinstance(only, str):
        found, inside = ([name for name in known if fnmatch.fnmatchcase(name, each)] for each in (only, f"{only}.*"))
        if not found:
            hint = f"did you mean '{only}.*'?" if inside else suggest(only, known)
            raise ValueError(
                f"swap_dropout: expected a pattern of names of dropout layers for only, got {only!r}; {hint}"
            )
        return lambda name, layer: name in found
    names = list(only)
    for name in names:
        if name not in known:
            raise ValueError(
                f"swap_dropout: expected names of dropout layers for only, got {name!r}; {suggest(str(name), known)}"
            )
    return lambda name, layer: name in names


def _chooser(law: Any) -> _Decision:
    """Return the function that gives the law for a layer: a law, None for no noise, or "leave"."""
    if isinstance(law, str):
        law = _parsed(law)
    if law is None or isinstance(law, Law):
        return lambda name, layer: law
    if isinstance(law, (type, torch.nn.Module)) or not callable(law):
        got = law.__name__ if isinstance(law, type) else type(law).__name__
        hint = ""
        if isinstance(law, type) and issubclass(law, Law):
            hint = "; a family of laws needs match='variance'"
        elif isinstance(law, Dropout):
            hint = "; give its law: swap_dropout(model, layer.law)"
        elif isinstance(law, torch.nn.Module) and is_plain(law):
            hint = f"; give its law: swap_dropout(model, {noise(law)!r})"
        raise TypeError(
            f"swap_dropout: expected a law, its text, None or a function of name and layer, got {got}{hint}"
        )

    def ask(name: str, layer: torch.nn.Module) -> Law | Literal["leave"]:
        answer = law(name, layer)
        if answer is None:
            return "leave"
        found = _parsed(answer) if isinstance(answer, str) else answer
        if not isinstance(found, Law):
            raise TypeError(f"swap_dropout: expected a law or None for {name}, got {type(found).__name__}")
        return found

    return ask


def _parsed(text: str) -> Law:
    if text.partition(":")[0].strip().lower() == "normal":
        raise ValueError(
            f"swap_dropout: expected a law, got {text!r}, a family of laws that needs match='variance'; one of its "
            "laws is 'gaussian:sigma=0.3,low=-inf,high=inf'"
        )
    return parse_law(text)


def _matching(family: Any) -> _Decision:
    """Return the function that gives the law of a family with a layer's own strength, or "leave"."""
    laws: Mapping[str, Any] = LAWS
    families: dict[Any, Any] = {name: law.matching for name, law in laws.items()}
    families["normal"] = lambda law: Gaussian.matching(law, clip=False)
    wanted = family.kind if family in laws.values() else family
    if not isinstance(wanted, str) or wanted not in families:
        hint = suggest(family, families) if isinstance(family, str) else f"known: {', '.join(families)}"
        raise ValueError(
            f"swap_dropout: expected a family of laws with match='variance', such as 'gaussian', got {family!r}; {hint}"
        )

    def match(name: str, layer: torch.nn.Module) -> Law | Literal["leave"]:
        own = noise(layer)
        if own.variance == 0 and own.mean:
            return "leave"
        if isinstance(own, Bernoulli) and wanted == "bernoulli":
            return own  # the same to the last bit
        try:
            matched: Law = families[wanted](own)
        except ValueError as error:
            reason = str(error)
            if math.isfinite(own.relative_variance):
                reason = f"{reason.partition(';')[0]}; use 'normal', which reaches every strength"
            raise ValueError(f"swap_dropout: layer {name}: {reason}") from error
        return matched

    return match


def noise(layer: torch.nn.Module) -> Law:
    """Return the law of the masks of a dropout layer, torch's or contdrop's."""
    rate: Any = getattr(layer, "p", 0)
    return layer.law if isinstance(layer, Dropout) else Bernoulli(keep=1 - rate)


def _replacement(
    name: str, old: torch.nn.Module, choose: _Decision, scale: Scale | None, fuse_relu: bool
) -> torch.nn.Module | None:
    """Return the layer to put in place of another; None to leave it."""
    law = choose(name, old)
    if law == "leave":
        return None
    if isinstance(old, ALPHA):
        raise ValueError(
            f"swap_dropout: {name} is {type(old).__name__}, which keeps mean and variance of self-normalising units by "
            "adding as well as multiplying; a mask cannot stand for it; leave it out by only=..."
        )
    new = _layer(law, old, scale, fuse_relu)
    share_hooks(old, new)
    new.training = old.training
    return new


def _layer(law: Law | None, old: Any, scale: Scale | None, fuse_relu: bool) -> torch.nn.Module:
    """Return a new layer of this law with the options of another one."""
    ours = isinstance(old, Dropout)
    activation, generator = (old.activation, old.generator) if ours else (None, None)
    axes = shared_axes(old)
    wanted = scale or (old.scale if ours else "inverted")
    if law is None and scale is None and wanted == "paper":
        mean = old.law.mean  # the factor of evaluation
        law = Bernoulli(keep=1.0, value=mean) if mean else Bernoulli(keep=0.0)
    if law is None and activation is None:
        # With rate 0 it returns its input, draws nothing, and has the attribute p that models read.
        return torch.nn.Dropout(0.0, inplace=old.inplace)
    options: dict[str, Any] = {"inplace": old.inplace, "scale": wanted, "generator": generator}
    if isinstance(law, Bernoulli) and law.value == 1 and not (axes or activation or fuse_relu):
        plain = BernoulliDropout(**options)
        plain.law = law  # exact to the last bit; the way over p may round
        return plain
    law = Bernoulli(keep=1.0) if law is None else law
    return Dropout(law, shared_axes=axes, activation=activation, **options)

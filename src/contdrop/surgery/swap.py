"""Other dropout in a model that exists already, and back again."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch

from .._text import plural
from .._torch.checks import check_choice
from .._torch.private import share_hooks
from ..choices import SCALES, Scale
from ..errors import suggest
from ..laws import LAWS, Bernoulli, BuiltIn, Gaussian, Law, parse_law
from ..nn import BernoulliDropout, Dropout
from .relu_fusion import Pair, pairs
from .sites import ALPHA, is_plain, out_of_reach, shared_axes
from .sites import Unreachable as Unreachable
from .sites import unreachable as unreachable
from .trace import Call as Call
from .trace import DropoutCalls as DropoutCalls
from .trace import changed as changed
from .trace import count_dropout as count_dropout
from .trace import count_dropout_in as count_dropout_in

Choose = Callable[[str, torch.nn.Module], "Law | str | None"]
Only = str | Collection[str] | Callable[[str, torch.nn.Module], bool]
Match = Literal[None, "variance"]


class Replaced(NamedTuple):
    """A layer that was taken out, and the one in its place."""

    old: torch.nn.Module
    new: torch.nn.Module

    @property
    def has_relu_of_the_model(self) -> bool:
        """Whether the new layer does the work of a ReLU, and the old one did not."""
        return getattr(self.new, "activation", None) != getattr(self.old, "activation", None)


class Swap:
    """What :func:`swap_dropout` did.

    Attributes:
        replaced: By name, what was taken out and what was put in. A layer that is in several places has several names.
        unreachable: Dropout that is left in the model because it is not a layer, as it is after the swap.
        fused: The names of the new layers that do the work of the ReLU before them.
    """

    def __init__(
        self,
        places: list[_Place],
        replaced: Mapping[str, Replaced],
        left: list[Unreachable],
        fused: list[Pair],
        slowed: list[tuple[torch.nn.TransformerEncoderLayer, int]],
    ) -> None:
        self._places = places
        self._fused = fused
        self._slowed = slowed
        self.replaced = dict(replaced)
        self.unreachable = left
        self.fused = [pair.name for pair in fused]

    @property
    def layers(self) -> list[torch.nn.Module]:
        """The new layers, each once."""
        return list({id(each.new): each.new for each in self.replaced.values()}.values())

    def undo(self) -> None:
        """Puts the very same layers back, in the mode (training or evaluation) that the new ones are in now.

        Hooks that were registered meanwhile stay. Several swaps of a model are undone in reverse order. Doing it twice
        does nothing.

        Raises:
            RuntimeError: Something else is now where a new layer was put; nothing is changed then.
        """
        for place in self._places:
            now = getattr(place.parent, place.key, None)
            if now is not place.layers.new:
                raise RuntimeError(
                    f"undo: expected {place.name} to be the layer that swap_dropout put there, got "
                    f"{type(now).__name__}; undo several swaps in reverse order"
                )
            if place.name not in self.fused and place.layers.has_relu_of_the_model:
                raise RuntimeError(
                    f"undo: expected {place.name} as swap_dropout made it, but fuse_relu put the ReLU before it inside"
                    "; let swap_dropout do that (fuse_relu=True), and undo takes it out again"
                )
        for pair in self._fused:
            pair.part()
        for place in self._places:
            setattr(place.parent, place.key, place.layers.old)
            place.layers.old.training = place.layers.new.training
            share_hooks(place.layers.new, place.layers.old)  # one registered meanwhile may be of another kind
        for layer, before in self._slowed:
            layer.activation_relu_or_gelu = before
        self._places, self._fused, self._slowed = [], [], []

    def __repr__(self) -> str:
        first = f"swapped {plural(len(self.layers), 'dropout layer')}"
        sites = [f"{name}: {what}, rate {'unknown' if p is None else f'{p:g}'}" for name, what, p in self.unreachable]
        return "\n  ".join([f"{first}; out of reach: {len(sites) or 'nothing'}", *sites])


class _Place(NamedTuple):
    name: str
    parent: torch.nn.Module
    key: str
    layers: Replaced


def swap_dropout(
    model: torch.nn.Module,
    law: Law | str | type[BuiltIn] | Choose | None,
    *,
    match: Match = None,
    only: Only | None = None,
    scale: Scale | None = None,
    fuse_relu: bool = False,
) -> Swap:
    """Puts other dropout into the place of a model's dropout layers, anywhere in its tree of modules, in place.

    Replaced are ``torch.nn.Dropout``, ``Dropout1d``, ``Dropout2d``, ``Dropout3d`` and :class:`contdrop.Dropout` with
    its kin, whatever their rate, unless a ``forward`` was assigned to the very layer. A layer that is in several places
    stays one layer. The new layers have the mode, the hooks, ``inplace``, and the generator and the activation (if it
    is one of ours) of the old ones. Parameters, buffers and their names do not change, because dropout has none. A
    plain Bernoulli law on single elements makes :class:`contdrop.BernoulliDropout`, which is a ``torch.nn.Dropout``.

    Masks of feature maps: where ``Dropout1d`` and ``Dropout3d`` were, one value is shared along the last one or three
    axes, with or without an axis for the batch, as torch does. Where ``Dropout2d`` was, it is shared along axes 2 and 3
    of [N, C, H, W]; torch reads three axes as [N, C, L] there, with a warning, and here they are an error.

    Out of reach is dropout that is not a layer: functions called in ``forward``, attention probabilities, recurrent
    layers' ``dropout=``. It is listed, stays on, and stays Bernoulli. Where a model hands the ``p`` of a dropout layer
    to an attention function, that function gets the ``p`` of the new layer: the rate of the same noise strength, 0 for
    none.

    Args:
        model: Any module that contains dropout layers. The model must not be scripted.
        law: What mask values are drawn from: a law, its text ("gaussian:sigma=0.3"), None for no noise at all, or a
            function of a layer's name and the layer that gives one of the first two, or None to leave the layer alone.
            With ``match``, a family of laws: "bernoulli", "uniform" (up to p = 0.25), "gaussian" (clipped; up to p of
            about 0.5, but from p = 0.4 on most of its values are at a bound) or "normal", the unclipped Gaussian, which
            reaches every strength; or the class of one.
        match: "variance" gives each layer a law of its own noise strength, p / (1 - p) for torch's; see
            ``Gaussian.matching``. Layers without noise are left alone.
        only: Which layers: a pattern of names ("encoder.*"), names, or a function of name and layer.
        scale: "inverted" or "paper", of the new layers; None keeps what each layer has, "inverted" for torch's. (With
            "paper", torch's TransformerEncoderLayer is kept from its fused evaluation, which would skip the factor.)
        fuse_relu: Whether the new layers do the work of a torch.nn.ReLU right before them as well: the same numbers in
            less time; see :func:`contdrop.fuse_relu` for where it is done. Undoing puts the ReLU back.

    Returns:
        What was replaced, what is out of reach, and the way back.

    Raises:
        ValueError: Among others, if the model has no dropout layer, or ``only`` names none.
    """
    owner = "swap_dropout"
    _check(owner, model, match, scale)
    choose = _matching(owner, law) if match else _chooser(owner, law)
    wanted = _selection(owner, model, only)
    new: dict[int, torch.nn.Module | None] = {}
    places = []
    for name, parent, key, old in _layers(model):
        if not wanted(name, old):
            continue
        if id(old) not in new:
            new[id(old)] = _replacement(owner, name, old, choose, scale, fuse_relu)
        layer = new[id(old)]
        if layer is not None:
            places.append(_Place(name, parent, key, Replaced(old, layer)))
    # A shared layer is one choice, whichever of its names was asked for.
    chosen = {id(place.layers.old): place.layers for place in places}
    places = [_Place(*found[:3], chosen[id(found[3])]) for found in _layers(model) if id(found[3]) in chosen]
    # All is made before anything is changed, so that an error changes nothing.
    for place in places:
        setattr(place.parent, place.key, place.layers.new)
    replaced = {place.name: place.layers for place in places}
    fused = [pair for pair in pairs(model) if fuse_relu and pair.name in replaced]
    for pair in fused:
        pair.fuse()
    return Swap(places, replaced, unreachable(model), fused, _slow(model, new.values()))


def _slow(
    model: torch.nn.Module, new: Iterable[torch.nn.Module | None]
) -> list[tuple[torch.nn.TransformerEncoderLayer, int]]:
    """Keeps torch's encoder layers from their fused evaluation, which would skip the factor of ``scale="paper"``.

    It is for ReLU and GELU only, so it is not taken where the layer says that its activation is another. (A hook would
    do as well, but torch.jit.script refuses it.)

    Returns:
        The encoder layers, and what they said.
    """
    paper = {layer for layer in new if isinstance(layer, Dropout) and layer.scale == "paper"}
    kinds = [module for module in model.modules() if isinstance(module, torch.nn.TransformerEncoderLayer)]
    found = [(layer, layer.activation_relu_or_gelu) for layer in kinds if paper.intersection(layer.modules())]
    for layer, _ in found:
        layer.activation_relu_or_gelu = 0
    return found


def _check(owner: str, model: object, match: object, scale: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{owner}: expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"{owner}: expected a model in Python, got a scripted one; swap before torch.jit.script")
    if is_plain(model) or isinstance(model, ALPHA):
        raise ValueError(
            f"{owner}: expected a model with dropout layers in it, got {type(model).__name__} itself, which has no "
            "place to be taken out of; put it into a torch.nn.Sequential"
        )
    check_choice(owner, "match", match, (None, "variance"))
    check_choice(owner, "scale", scale, (None, *SCALES))
    if not any(_layers(model)):
        left = out_of_reach(model)
        raise ValueError(
            f"{owner}: expected a model with dropout layers, got {type(model).__name__} without any"
            + (f"; out of reach: {left}" if left else "")
        )


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, torch.nn.Module]]:
    """The dropout layers of a model: name, module that holds it, its name there, and itself. Each place once."""
    for path, parent in model.named_modules():
        inside = parent.named_modules(remove_duplicate=False)
        for key, layer in [(key, layer) for key, layer in inside if key and "." not in key]:
            if is_plain(layer) or isinstance(layer, ALPHA):
                yield f"{path}.{key}" if path else key, parent, key, layer


def _selection(owner: str, model: torch.nn.Module, only: Only | None) -> Callable[[str, torch.nn.Module], bool]:
    if only is None:
        return lambda name, layer: True
    if callable(only):
        return only
    known = [name for name, *_ in _layers(model)]
    if isinstance(only, str):
        found, inside = ([name for name in known if fnmatch.fnmatchcase(name, each)] for each in (only, f"{only}.*"))
        if not found:
            hint = f"did you mean '{only}.*'?" if inside else suggest(only, known)
            raise ValueError(f"{owner}: expected a pattern of names of dropout layers for only, got {only!r}; {hint}")
        return lambda name, layer: name in found
    names = list(only)
    for name in names:
        if name not in known:
            raise ValueError(
                f"{owner}: expected names of dropout layers for only, got {name!r}; {suggest(str(name), known)}"
            )
    return lambda name, layer: name in names


def _chooser(owner: str, law: Any) -> Callable[[str, torch.nn.Module], Law | Literal["leave"] | None]:
    """What to put into a layer's place: a law, None for no noise, or to leave it."""
    if law is None:
        return lambda name, layer: None
    if isinstance(law, str):
        law = _parsed(owner, law)
    if isinstance(law, Law):
        return lambda name, layer: law
    if isinstance(law, (type, torch.nn.Module)) or not callable(law):
        got = law.__name__ if isinstance(law, type) else type(law).__name__
        raise TypeError(
            f"{owner}: expected a law, its text, None or a function of name and layer, got {got}{_instead_of(law)}"
        )

    def ask(name: str, layer: torch.nn.Module) -> Law | Literal["leave"]:
        answer = law(name, layer)
        if answer is None:
            return "leave"
        found = _parsed(owner, answer) if isinstance(answer, str) else answer
        if not isinstance(found, Law):
            raise TypeError(f"{owner}: expected a law or None for {name}, got {type(found).__name__}")
        return found

    return ask


def _parsed(owner: str, text: str) -> Law:
    if text.partition(":")[0].strip().lower() == "normal":
        raise ValueError(
            f"{owner}: expected a law, got {text!r}, a family of laws that needs match='variance'; one of its laws is "
            "'gaussian:sigma=0.3,low=-inf,high=inf'"
        )
    return parse_law(text)


def _instead_of(law: Any) -> str:
    """What to give in place of what is no law."""
    if isinstance(law, type) and issubclass(law, Law):
        return "; a family of laws needs match='variance'"
    if isinstance(law, Dropout):
        return "; give its law: swap_dropout(model, layer.law)"
    if isinstance(law, torch.nn.Module) and is_plain(law):
        return f"; give its law: swap_dropout(model, {noise(law)!r})"
    return ""


def _matching(owner: str, family: Any) -> Callable[[str, torch.nn.Module], Law | Literal["leave"]]:
    laws: Mapping[str, Any] = LAWS
    families: dict[Any, Any] = {name: law.matching for name, law in laws.items()}
    families["normal"] = lambda law: Gaussian.matching(law, clip=False)
    known = {**families, **{law: law.matching for law in laws.values()}}
    if not isinstance(family, (str, type)) or family not in known:
        hint = suggest(family, families) if isinstance(family, str) else f"known: {', '.join(families)}"
        raise ValueError(
            f"{owner}: expected a family of laws with match='variance', such as 'gaussian', got {family!r}; {hint}"
        )

    def match(name: str, layer: torch.nn.Module) -> Law | Literal["leave"]:
        own = noise(layer)
        if own.variance == 0 and own.mean:
            return "leave"
        if isinstance(own, Bernoulli) and family in ("bernoulli", Bernoulli):
            return own  # the same to the last bit
        try:
            matched: Law = known[family](own)
        except ValueError as error:
            reason = str(error)
            if math.isfinite(own.relative_variance):
                reason = f"{reason.partition(';')[0]}; use 'normal', which reaches every strength"
            raise ValueError(f"{owner}: layer {name}: {reason}") from error
        return matched

    return match


def noise(layer: torch.nn.Module) -> Law:
    """The law of the masks of a dropout layer, torch's or ours."""
    if isinstance(layer, Dropout):
        return layer.law
    rate: Any = layer.p
    return Bernoulli(keep=1 - rate)


def _replacement(
    owner: str, name: str, old: torch.nn.Module, choose: Callable[..., Any], scale: Scale | None, fuse_relu: bool
) -> torch.nn.Module | None:
    law = choose(name, old)
    if law == "leave":
        return None
    if isinstance(old, ALPHA):
        raise ValueError(
            f"{owner}: {name} is {type(old).__name__}, which keeps mean and variance of self-normalising units by "
            "adding as well as multiplying; a mask cannot stand for it; leave it out by only=..."
        )
    layer: Any = old
    ours = isinstance(old, Dropout)
    activation = layer.activation if ours else None
    axes = shared_axes(old)
    options: dict[str, Any] = {
        "inplace": layer.inplace,
        "scale": scale or (layer.scale if ours else "inverted"),
        "generator": layer.generator if ours else None,
    }
    if law is None and scale is None and options["scale"] == "paper":
        mean = layer.law.mean  # what evaluation multiplies by
        law = Bernoulli(keep=1.0, value=mean) if mean else Bernoulli(keep=0.0)
    new: torch.nn.Module
    if law is None and activation is None:
        # With rate 0 it hands its input on, draws nothing, and still has the p that models ask for.
        new = torch.nn.Dropout(0.0, inplace=layer.inplace)
    elif isinstance(law, Bernoulli) and law.value == 1 and not (axes or activation or fuse_relu):
        new = plain = BernoulliDropout(**options)
        plain.law = law  # to the last bit, which the way over p may cost
    else:
        law = Bernoulli(keep=1.0) if law is None else law
        new = Dropout(law, shared_axes=axes, activation=activation, **options)
    share_hooks(old, new)
    new.training = old.training
    return new
